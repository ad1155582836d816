// The part of `heed attention` that looks into a model's folder.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace heed {

struct AttentionMapSettings {
  std::string text;
  std::string text_file;
  int64_t layer = -1;  // -1: all
  int64_t head = -1;
  bool ablate = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit("text", self.text, "text to show the heads of a model on");
    visit("text_file", self.text_file, "the same from a file, of which maps show the beginning");
    visit("layer", self.layer, "layer to draw, from 0; all when not given");
    visit("head", self.head, "head to draw, from 0; all when not given");
    visit("ablate", self.ablate, "how much loss each head saves: the whole text without it");
  }
};

// `model` is a folder; `out` a picture, a .safetensors, or "" for neither.
Result<Verdict> ShowAttentionMaps(Session& session, const AttentionMapSettings& settings,
                                  const std::string& model, const std::string& out);

}  // namespace heed
