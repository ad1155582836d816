#!/usr/bin/python3
"""llama.cpp on one GGUF file: first token, prefill and decoding, by its C library.

  bench/llama_cpp.py LIBRARIES FILE.gguf [--threads 2] [--prompt 16] [--prefill 512] [--new 128]

LIBRARIES is the folder of node-llama-cpp's prebuilt libllama and libggml. Prints one JSON line:
seconds from before the libraries are opened to the first token behind the prompt, tokens per second
of reading `prefill` tokens and of writing `new` ones behind the prompt, greedily, and peak MiB.
"""
import argparse
import ctypes
import glob
import json
import os
import resource
import sys
import time

START = time.monotonic()


class Batch(ctypes.Structure):
    """llama_batch of llama.h: a count and six pointers."""
    _fields_ = [("n_tokens", ctypes.c_int32)] + [(name, ctypes.c_void_p) for name in
                                                 ("token", "embd", "pos", "n_seq_id", "seq_id",
                                                  "logits")]


class Parameters(ctypes.Structure):
    """A settings struct of which only the first numbers are known; larger than any."""
    _fields_ = [("numbers", ctypes.c_uint32 * 256)]


def open_libraries(folder):
    def named(pattern):
        found = sorted(glob.glob(os.path.join(folder, pattern)))
        if not found:
            sys.exit(f"no {pattern} in {folder}")
        return ctypes.CDLL(found[-1], mode=ctypes.RTLD_GLOBAL)
    named("libggml-base*.so*")
    ggml = named("libggml.*so*")
    llama = named("libllama.*so*")
    ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
    ggml.ggml_backend_load_all_from_path(folder.encode())
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
        lambda level, text, data: None)
    llama.keep = silent
    llama.llama_log_set(silent, None)
    pointer = ctypes.c_void_p
    for name, result, arguments in [
            ("llama_model_default_params", Parameters, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Parameters]),
            ("llama_context_default_params", Parameters, []),
            ("llama_init_from_model", pointer, [pointer, Parameters]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", ctypes.c_int32, [pointer]),
            ("llama_batch_get_one", Batch, [ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]),
            ("llama_decode", ctypes.c_int32, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, ctypes.c_int32]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool])]:
        function = getattr(llama, name)
        function.restype, function.argtypes = result, arguments
    return llama


class Model:
    def __init__(self, llama, path, threads, context):
        self.llama = llama
        self.model = llama.llama_model_load_from_file(path.encode(),
                                                      llama.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp does not open {path}")
        settings = llama.llama_context_default_params()
        # n_ctx, n_batch, n_ubatch, n_seq_max, n_threads, n_threads_batch; longer in later versions.
        settings.numbers[0] = settings.numbers[1] = settings.numbers[2] = context
        place = [i for i in range(3, 8) if settings.numbers[i] == settings.numbers[i + 1] == 4]
        settings.numbers[place[0]] = settings.numbers[place[0] + 1] = threads
        self.context = llama.llama_init_from_model(self.model, settings)
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def read(self, tokens):
        """Feeds tokens and returns the likeliest next one."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(array, len(tokens))):
            sys.exit("llama_decode failed")
        return self.llama.llama_get_logits_ith(self.context, -1)

    def clear(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("libraries")
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompt", type=int, default=16)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--new", type=int, default=128)
    a = p.parse_args()
    model = Model(open_libraries(a.libraries), a.model, a.threads,
                  max(a.prompt + a.new, a.prefill) + 16)
    ids = [(7 * i + 5) % model.vocab for i in range(max(a.prompt, a.prefill))]
    # The logits are read where they lie: the choice of the next token is left out here, and is part
    # of what heed is measured by.
    token = int(abs(model.read(ids[:a.prompt])[0])) % model.vocab
    first = time.monotonic() - START
    start = time.monotonic()
    for _ in range(a.new):
        model.read([token])
    decode = a.new / (time.monotonic() - start)
    model.clear()
    model.read(ids[:a.prefill])
    model.clear()
    start = time.monotonic()
    model.read(ids[:a.prefill])
    prefill = a.prefill / (time.monotonic() - start)
    print(json.dumps({"first_token_s": first, "prefill_tokens_per_s": prefill,
                      "decode_tokens_per_s": decode,
                      "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
