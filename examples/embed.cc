// examples/embed.cc - continues a text with sampled attention: embed MODEL_FOLDER TEXT
#include <iostream>
#include <memory>
#include <sleigh.h>
#include <string>

int main(int argc, char **argv) {
    if (argc != 3) return std::cerr << "usage: embed MODEL_FOLDER TEXT\n", 2;
    sl_error err;
    sl_model *model = nullptr;
    sl_engine *engine = nullptr;
    sl_engine_options options = sl_engine_options_default();
    sl_generation generation = sl_generation_default();
    options.attn = "santa-prop:S=128";
    generation.sampling.temp = 0, generation.max_tokens = 16;
    auto print = [](void *, const char *text, size_t n) { return std::cout << std::string(text, n) << std::flush ? 0 : 1; };
    int rc = sl_model_load(argv[1], nullptr, &model, &err);
    std::unique_ptr<sl_model, void (*)(sl_model *)> free_model(model, sl_model_free);
    if (!rc) rc = sl_engine_new(model, &options, &engine, &err);
    std::unique_ptr<sl_engine, void (*)(sl_engine *)> free_engine(engine, sl_engine_free);
    if (!rc) rc = sl_generate(engine, argv[2], &generation, print, nullptr, nullptr, &err);
    if (rc) std::cerr << err.message << "\n";
    return rc != 0;
}
