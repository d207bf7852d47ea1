// The option of a command line that says the batch: "--batch-size 16",
// "--per_device_train_batch_size=8", "-b 4", "train.batch_size=32".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tonnage::analysis {

// The words of a command that was joined by spaces.
std::vector<std::string> words_of_command(std::string_view command);

// The batch, if the words name one and only one. A global batch counts only where no batch of one
// card is named; batches of evaluation, and numbers of batches, are not meant.
std::optional<uint64_t> find_batch(const std::vector<std::string>& words);

// The same command with another batch; as it is where find_batch finds none.
std::vector<std::string> with_batch(std::vector<std::string> words, uint64_t batch);

}  // namespace tonnage::analysis
