// Learns a byte-level BPE vocabulary from text, as GPT-2's was learned.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "text/bpe_tokenizer.h"

namespace heed {

// Ids 0 to 255 are the bytes in the order of GPT-2's alphabet ('!' first), then one token per
// merge. Texts are cut by GPT-2's pattern; each is counted by one thread, so they may be parts of
// one text cut where SplitsAt allows. Again and again the most frequent pair of neighbours merges;
// among equally frequent ones that with the smaller left id, then the smaller right id (Hugging
// Face's rule). It ends at `vocab_size` tokens, or sooner when no pair occurs twice. The result
// does not depend on threads or on the order of the texts. Pieces longer than 256 bytes count in
// parts of 256. Errors (kRequest): vocab_size outside 256 to 1048576.
Result<BpeVocabulary> TrainBpe(std::span<const std::string_view> texts, int64_t vocab_size);

}  // namespace heed
