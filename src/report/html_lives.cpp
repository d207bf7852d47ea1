#include "report/html_lives.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

namespace tonnage::report {
namespace {

using namespace analysis;

constexpr uint64_t kUnit = 512;  // addresses and sizes of PyTorch's blocks are multiples of it
constexpr uint64_t kLargestExact = uint64_t{1} << 53;  // of a number in a page

class Varints {
 public:
  void put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void put_signed(int64_t value) {
    put(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  size_t size() const { return bytes_.size(); }

  std::string base64() const {
    static constexpr char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes_.size() + 2) / 3 * 4);
    for (size_t i = 0; i < bytes_.size(); i += 3) {
      const auto byte = [&](size_t at) {
        return at < bytes_.size() ? static_cast<uint32_t>(static_cast<unsigned char>(bytes_[at]))
                                  : 0u;
      };
      const uint32_t word = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
      for (int part = 0; part < 4; ++part)
        out += i + static_cast<size_t>(part) > bytes_.size()
                   ? '='
                   : kDigits[word >> (18 - 6 * part) & 63];
    }
    return out;
  }

 private:
  std::string bytes_;
};

uint64_t life(uint32_t from, uint32_t to) { return to == kNever ? 0 : uint64_t{to} - from + 1; }
int64_t apart(uint64_t now, uint64_t before) {
  return static_cast<int64_t>(now) - static_cast<int64_t>(before);
}

}  // namespace

std::optional<nlohmann::ordered_json> encode_lives(
    const BlockLives& lives,
    const std::function<std::pair<uint64_t, int64_t>(const BlockLife&)>& origin, size_t max_bytes) {
  uint64_t unit = kUnit;
  const auto fits = [&](uint64_t address, uint64_t size) {
    if (address % kUnit != 0 || size % kUnit != 0) unit = 1;
    return address < kLargestExact && size < kLargestExact;
  };
  for (const SegmentLife& segment : lives.segments) {
    if (!fits(segment.address, segment.size_bytes)) return std::nullopt;
  }
  for (const BlockLife& block : lives.blocks) {
    if (!fits(block.address, block.size_bytes)) return std::nullopt;
  }

  Varints segments, shapes, blocks;
  nlohmann::ordered_json streams = nlohmann::ordered_json::array();
  std::map<uint64_t, uint64_t> stream_index;
  uint64_t from = 0, address = 0;
  for (const SegmentLife& segment : lives.segments) {
    const auto [stream, made] = stream_index.try_emplace(segment.stream, stream_index.size());
    if (made) streams.push_back(segment.stream);
    segments.put(segment.from - from);
    segments.put(life(segment.from, segment.to));
    segments.put_signed(apart(segment.address / unit, address));
    segments.put(segment.size_bytes / unit);
    segments.put(2 * stream->second + (segment.expandable ? 1 : 0));
    from = segment.from;
    address = (segment.address + segment.size_bytes) / unit;
  }
  std::map<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, int64_t>, uint64_t> shape_index;
  from = address = 0;
  uint64_t last_shape = 0;
  for (const BlockLife& block : lives.blocks) {
    const auto [category, site] = origin(block);
    const uint64_t rounding = block.size_bytes - std::min(block.requested_bytes, block.size_bytes);
    const auto [shape, made] = shape_index.try_emplace(
        {block.address, block.size_bytes, rounding, category, site}, shape_index.size());
    if (made) {
      shapes.put_signed(apart(block.address / unit, address));
      shapes.put(block.size_bytes / unit);
      shapes.put(rounding);
      shapes.put(category);
      shapes.put(static_cast<uint64_t>(site + 1));
      address = block.address / unit;
    }
    const uint32_t freed = std::min(block.freed, block.gone);
    blocks.put(block.from - from);
    blocks.put(life(block.from, freed));
    blocks.put(freed == kNever ? 0 : life(freed, block.gone));
    blocks.put_signed(apart(shape->second, last_shape));
    from = block.from;
    last_shape = shape->second;
    if ((segments.size() + shapes.size() + blocks.size()) / 3 * 4 > max_bytes) return std::nullopt;
  }
  if ((segments.size() + shapes.size() + blocks.size()) / 3 * 4 > max_bytes) return std::nullopt;
  return nlohmann::ordered_json{{"process", lives.process},      {"unit", unit},
                                {"streams", std::move(streams)}, {"segments", segments.base64()},
                                {"shapes", shapes.base64()},     {"blocks", blocks.base64()}};
}

}  // namespace tonnage::report
