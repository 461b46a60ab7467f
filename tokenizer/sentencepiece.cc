// tokenizer/sentencepiece.cc - C functions over the SentencePiece library (tokenizer_internal.h).
//
// The library throws exceptions. No exception may pass through C code, so every function here catches all of them.
#include "tokenizer/tokenizer_internal.h"

#include <sentencepiece_processor.h>

#include <climits>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

struct sl_spm {
    sentencepiece::SentencePieceProcessor processor;
    size_t most_text; // bytes of a text, because the library counts the bytes of the normalised text in an int
};

// Runs fn, which returns 0 or an error. An exception becomes an error.
template <typename F> static int guarded(const char *what, sl_error *err, F fn) noexcept {
    try {
        return fn();
    } catch (const std::bad_alloc &) {
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", what);
    } catch (const std::exception &e) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: SentencePiece: %s", what, e.what());
    } catch (...) {
        return sl_fail(err, SL_ERR_FORMAT, "%s: SentencePiece failed, without a reason", what);
    }
}

int sl_spm_load(const char *file, const sl_spm_model *model, sl_spm **out, sl_error *err) {
    sl_spm *spm = nullptr;
    int rc = guarded(file, err, [&] {
        spm = new sl_spm;
        spm->most_text = static_cast<size_t>(INT_MAX / model->growth);
        const auto status = spm->processor.LoadFromSerializedProto(absl::string_view(model->proto.data, model->proto.n));
        return status.ok() ? 0
                           : sl_fail(err, SL_ERR_FORMAT, "%s: not a SentencePiece model: %s", file, status.ToString().c_str());
    });
    if (rc) {
        sl_spm_free(spm);
        return rc;
    }
    *out = spm;
    return 0;
}

void sl_spm_free(sl_spm *spm) {
    guarded("SentencePiece", nullptr, [&] { return delete spm, 0; });
}

static int number_of(const sl_spm *spm, int (sentencepiece::SentencePieceProcessor::*get)() const) {
    int n = -1;
    guarded("SentencePiece", nullptr, [&] { return n = (spm->processor.*get)(), 0; });
    return n;
}
int sl_spm_n(const sl_spm *spm) {
    return number_of(spm, &sentencepiece::SentencePieceProcessor::GetPieceSize);
}
int sl_spm_bos(const sl_spm *spm) {
    return number_of(spm, &sentencepiece::SentencePieceProcessor::bos_id);
}
int sl_spm_eos(const sl_spm *spm) {
    return number_of(spm, &sentencepiece::SentencePieceProcessor::eos_id);
}

const char *sl_spm_piece(const sl_spm *spm, int id, sl_spm_kind *kind) {
    const char *piece = "";
    *kind = SL_SPM_NORMAL;
    guarded("SentencePiece", nullptr, [&] {
        const auto &p = spm->processor;
        *kind = p.IsUnknown(id)   ? SL_SPM_UNKNOWN
                : p.IsControl(id) ? SL_SPM_CONTROL
                : p.IsByte(id)    ? SL_SPM_BYTE
                : p.IsUnused(id)  ? SL_SPM_UNUSED
                                  : SL_SPM_NORMAL;
        piece = p.IdToPiece(id).c_str();
        return 0;
    });
    return piece;
}

int sl_spm_find(const sl_spm *spm, const char *piece, size_t n) {
    int id = -1;
    guarded("SentencePiece", nullptr, [&] {
        const absl::string_view text(piece, n);
        int found = spm->processor.PieceToId(text);
        if (found >= 0 && found < spm->processor.GetPieceSize() && spm->processor.IdToPiece(found) == text) id = found;
        return 0;
    });
    return id;
}

int sl_spm_encode(const sl_spm *spm, const char *text, size_t n, sl_ids *ids, sl_error *err) {
    char what[64];
    std::snprintf(what, sizeof what, "a text of %zu bytes", n);
    if (n > spm->most_text)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: SentencePiece takes at most %zu with this tokenizer.model", what,
                       spm->most_text);
    return guarded(what, err, [&] {
        std::vector<int> found;
        const auto status = spm->processor.Encode(absl::string_view(text, n), &found);
        if (!status.ok())
            return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: SentencePiece cannot encode it: %s", what, status.ToString().c_str());
        int rc = 0;
        for (size_t i = 0; !rc && i < found.size(); i++) rc = sl_ids_push(ids, found[i], err);
        return rc;
    });
}
