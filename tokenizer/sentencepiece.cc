// tokenizer/sentencepiece.cc - the SentencePiece library behind the C functions of internal.h. Owns nothing else.
#include "tokenizer/internal.h"

#include <sentencepiece_processor.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

struct sl_spm {
    sentencepiece::SentencePieceProcessor processor;
};

sl_spm *sl_spm_load(const char *path, char *why, size_t size) {
    sl_spm *spm = new (std::nothrow) sl_spm;
    if (!spm) return nullptr;
    const auto status = spm->processor.Load(path);
    if (status.ok()) return spm;
    std::strncpy(why, status.ToString().c_str(), size - 1);
    why[size - 1] = 0;
    delete spm;
    return nullptr;
}

void sl_spm_free(sl_spm *spm) { delete spm; }
int sl_spm_n(const sl_spm *spm) { return spm->processor.GetPieceSize(); }
int sl_spm_bos(const sl_spm *spm) { return spm->processor.bos_id(); }
int sl_spm_eos(const sl_spm *spm) { return spm->processor.eos_id(); }

const char *sl_spm_piece(const sl_spm *spm, int id, sl_spm_kind *kind) {
    const auto &p = spm->processor;
    *kind = p.IsUnknown(id)   ? SL_SPM_UNKNOWN
            : p.IsControl(id) ? SL_SPM_CONTROL
            : p.IsByte(id)    ? SL_SPM_BYTE
            : p.IsUnused(id)  ? SL_SPM_UNUSED
                              : SL_SPM_NORMAL;
    return p.IdToPiece(id).c_str();
}

int *sl_spm_encode(const sl_spm *spm, const char *text, size_t n, size_t *n_ids) try {
    std::vector<int> ids;
    if (!spm->processor.Encode(std::string(text, n), &ids).ok()) return nullptr;
    int *out = static_cast<int *>(std::malloc((ids.size() + 1) * sizeof *out));
    if (!out) return nullptr;
    std::memcpy(out, ids.data(), ids.size() * sizeof *out);
    *n_ids = ids.size();
    return out;
} catch (const std::bad_alloc &) { // nothing may be thrown through C
    return nullptr;
}
