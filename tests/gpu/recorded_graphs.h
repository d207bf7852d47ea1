// What tools/device/graphs.cpp recorded on an H200: which executable graphs of a sequence took
// memory of the card (tests/data/graphs/h200.txt, a line each; its head says what the words are).
#pragma once

#include <cstddef>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tonnage::testing_data {

struct RecordedGraphs {
  std::string kind, kept, shape;
  size_t nodes = 0, parameter_bytes = 0, graphs = 0, streams = 0;
  std::vector<std::string> taken;  // "3": the fourth graph took one granule; "3x2": two
};

// Throws if a line has another form.
inline std::vector<RecordedGraphs> read_recorded_graphs() {
  std::ifstream file(std::string(TONNAGE_SOURCE_DIR) + "/tests/data/graphs/h200.txt");
  std::vector<RecordedGraphs> out;
  for (std::string text; std::getline(file, text);) {
    if (text.empty() || text[0] == '#') continue;
    std::istringstream line(text);
    RecordedGraphs row;
    char colon = 0;
    if (!(line >> row.kind >> row.nodes >> row.parameter_bytes >> row.graphs >> row.kept >>
          row.shape >> row.streams >> colon))
      throw std::runtime_error("tests/data/graphs/h200.txt: " + text);
    for (std::string word; line >> word;) row.taken.push_back(word);
    out.push_back(row);
  }
  return out;
}

}  // namespace tonnage::testing_data
