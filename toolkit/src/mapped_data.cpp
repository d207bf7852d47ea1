// Files as tensors, and the datasets on them.
#include <ATen/CPUGeneratorImpl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "tonnage/torch/data.h"

namespace tonnage {
namespace {

using ::torch::Tensor;

// A whole file, mapped; changes stay private.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    TORCH_CHECK(fd >= 0, "map: ", path, ": ", std::strerror(errno));
    struct stat info {};
    const bool known = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    size_ = known ? static_cast<size_t>(info.st_size) : 0;
    if (size_ > 0)
      data_ = static_cast<char*>(
          mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0));
    const int error = errno;
    close(fd);
    TORCH_CHECK(known, "map: ", path, " is not a regular file");
    TORCH_CHECK(data_ != MAP_FAILED, "map: ", path, ": ", std::strerror(error));
  }
  ~Mapping() {
    if (data_) munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

// Elements of the shape, or nothing where it is negative or the product with the element size
// overflows.
std::optional<int64_t> elements_of(const std::vector<int64_t>& shape, int64_t element_bytes) {
  int64_t elements = 1, bytes = 0;
  for (int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes)) return std::nullopt;
  return elements;
}

Tensor tensor_on(std::shared_ptr<Mapping> mapping, int64_t offset,
                 const std::vector<int64_t>& shape, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  if (elements_of(shape, 1).value_or(0) == 0) return at::empty(shape, options);
  char* data = mapping->data() + offset;
  return at::from_blob(
      data, shape, [mapping = std::move(mapping)](void*) {}, options);
}

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;

struct NpyType {
  const char* name;
  at::ScalarType type;
};
constexpr NpyType kNpyTypes[] = {{"|b1", at::kBool},  {"|u1", at::kByte},  {"|i1", at::kChar},
                                 {"<i2", at::kShort}, {"<i4", at::kInt},   {"<i8", at::kLong},
                                 {"<f2", at::kHalf},  {"<f4", at::kFloat}, {"<f8", at::kDouble},
                                 {"<u2", at::kUInt16}};

// The text after "'key':" in the header, without spaces in front; empty if the key is missing.
std::string_view value_of(std::string_view header, const std::string& key) {
  const size_t at = header.find("'" + key + "'");
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + key.size() + 2);
  const size_t begin = rest.find_first_not_of(" :");
  return begin == std::string_view::npos ? std::string_view() : rest.substr(begin);
}

std::vector<int64_t> parse_shape(std::string_view text, const std::string& path) {
  const size_t end = text.find(')');
  TORCH_CHECK(!text.empty() && text[0] == '(' && end != std::string_view::npos, "map_npy: ", path,
              ": the header has no shape");
  text = text.substr(1, end - 1);
  std::vector<int64_t> shape;
  while (true) {
    const size_t begin = text.find_first_not_of(" ,");
    if (begin == std::string_view::npos) return shape;
    text = text.substr(begin);
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    TORCH_CHECK(error == std::errc() && size >= 0 && shape.size() < 64, "map_npy: ", path,
                ": the shape in the header cannot be read");
    shape.push_back(size);
    text = text.substr(static_cast<size_t>(stop - text.data()));
  }
}

}  // namespace

Tensor map_npy(const std::string& path) {
  auto mapping = std::make_shared<Mapping>(path);
  const char* data = mapping->data();
  TORCH_CHECK(mapping->size() >= 10 && std::memcmp(data, kMagic, kMagicBytes) == 0,
              "map_npy: ", path, " is not a .npy file (its first bytes differ)");
  const auto byte = [&](size_t i) {
    return static_cast<size_t>(static_cast<unsigned char>(data[i]));
  };
  const size_t version = byte(6);
  TORCH_CHECK(version >= 1 && version <= 3, "map_npy: ", path, " has format version ", version,
              "; 1 to 3 can be read");
  const size_t prefix = version == 1 ? 10 : 12;
  TORCH_CHECK(mapping->size() >= prefix, "map_npy: ", path, " ends inside its header");
  const size_t header_bytes = version == 1
                                  ? byte(8) | byte(9) << 8
                                  : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  TORCH_CHECK(header_bytes <= mapping->size() - prefix, "map_npy: ", path,
              " ends inside its header");
  const std::string_view header(data + prefix, header_bytes);

  std::string_view type_text = value_of(header, "descr");
  TORCH_CHECK(type_text.size() > 4 && type_text[0] == '\'', "map_npy: ", path,
              ": only plain number types can be mapped");
  type_text = type_text.substr(1, type_text.find('\'', 1) - 1);
  const NpyType* type = nullptr;
  for (const NpyType& known : kNpyTypes)
    if (type_text == known.name) type = &known;
  TORCH_CHECK(type, "map_npy: ", path, ": numbers of type ", std::string(type_text),
              " cannot be mapped. Convert the file");
  TORCH_CHECK(value_of(header, "fortran_order").rfind("False", 0) == 0, "map_npy: ", path,
              " is in Fortran order. Write it in C order");
  const std::vector<int64_t> shape = parse_shape(value_of(header, "shape"), path);
  const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(type->type));
  const auto elements = elements_of(shape, element_bytes);
  const size_t begin = prefix + header_bytes;
  TORCH_CHECK(elements && static_cast<size_t>(*elements * element_bytes) <= mapping->size() - begin,
              "map_npy: ", path, " is ", mapping->size(),
              " bytes; its header asks for more (shape ", c10::IntArrayRef(shape), ")");
  return tensor_on(std::move(mapping), static_cast<int64_t>(begin), shape, type->type);
}

Tensor map_raw(const std::string& path, at::ScalarType type, std::vector<int64_t> shape,
               int64_t offset_bytes) {
  auto mapping = std::make_shared<Mapping>(path);
  const int64_t element_bytes = static_cast<int64_t>(c10::elementSize(type)),
                size = static_cast<int64_t>(mapping->size());
  TORCH_CHECK(offset_bytes >= 0 && offset_bytes <= size && offset_bytes % element_bytes == 0,
              "map_raw: offset_bytes is ", offset_bytes, "; it must be a multiple of ",
              element_bytes, " inside ", path, " (", size, " bytes)");
  const auto open_size = std::find(shape.begin(), shape.end(), -1);
  if (open_size != shape.end()) {
    *open_size = 1;
    const auto row = elements_of(shape, element_bytes);
    TORCH_CHECK(row && *row > 0, "map_raw: shape ", c10::IntArrayRef(shape),
                " has no size that could be filled");
    *open_size = (size - offset_bytes) / element_bytes / *row;
  }
  const auto elements = elements_of(shape, element_bytes);
  TORCH_CHECK(elements && *elements * element_bytes <= size - offset_bytes, "map_raw: ", path,
              " has ", size - offset_bytes, " bytes from ", offset_bytes, " on; shape ",
              c10::IntArrayRef(shape), " needs more");
  return tensor_on(std::move(mapping), offset_bytes, shape, type);
}

void write_npy(const std::string& path, const Tensor& tensor) {
  const NpyType* type = nullptr;
  for (const NpyType& known : kNpyTypes)
    if (known.type == tensor.scalar_type()) type = &known;
  TORCH_CHECK(type, "write_npy: ", tensor.dtype(), " has no .npy type. Convert it first");
  const Tensor data = tensor.detach().cpu().contiguous();
  std::string shape;
  for (int64_t size : data.sizes()) shape += std::to_string(size) + ",";
  std::string header = std::string("{'descr': '") + type->name +
                       "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');  // data begin at a multiple of 64
  header += '\n';
  TORCH_CHECK(header.size() < 65536, "write_npy: the shape is too long");
  std::string bytes(kMagic, kMagicBytes);
  bytes += {1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  bytes += header;

  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  TORCH_CHECK(fd >= 0, "write_npy: ", path, ": ", std::strerror(errno));
  bool done = true;
  const auto put = [&](const char* from, size_t n) {
    while (n > 0 && done) {
      const ssize_t written = write(fd, from, n);
      if (written < 0 && errno == EINTR) continue;
      done = written >= 0;
      if (!done) break;
      from += written;
      n -= static_cast<size_t>(written);
    }
  };
  put(bytes.data(), bytes.size());
  put(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
  done &= close(fd) == 0;
  const int error = errno;
  if (!done) unlink(path.c_str());
  TORCH_CHECK(done, "write_npy: ", path, ": ", std::strerror(error));
}

MappedDataset::MappedDataset(Tensor data, Tensor targets)
    : data_(std::move(data)), targets_(std::move(targets)) {
  TORCH_CHECK(data_.dim() > 0 && targets_.dim() > 0 && data_.size(0) == targets_.size(0),
              "MappedDataset: data are ", data_.sizes(), ", targets ", targets_.sizes(),
              "; both must have one row per example");
  TORCH_CHECK(data_.is_cpu() && targets_.is_cpu(),
              "MappedDataset: both tensors must be on the CPU");
}

::torch::data::Example<> MappedDataset::get(size_t index) {
  TORCH_CHECK_INDEX(index < *size(), "MappedDataset: row ", index, " of ", *size());
  return {data_.select(0, static_cast<int64_t>(index)),
          targets_.select(0, static_cast<int64_t>(index))};
}

Batch MappedDataset::gather(const Tensor& indices) const {
  return {data_.index_select(0, indices), targets_.index_select(0, indices)};
}

TokenDataset::TokenDataset(Tensor tokens, int64_t length, int64_t stride)
    : tokens_(std::move(tokens)), length_(length), stride_(stride == 0 ? length : stride) {
  TORCH_CHECK(length_ > 0 && stride_ > 0,
              "TokenDataset: length and stride must be positive; they are ", length_, " and ",
              stride_);
  TORCH_CHECK(tokens_.dim() == 1 &&
                  at::isIntegralType(tokens_.scalar_type(), /*includeBool=*/false) &&
                  tokens_.is_cpu(),
              "TokenDataset: tokens are ", tokens_.dtype(), " ", tokens_.sizes(), " on ",
              tokens_.device(), "; they must be one row of integers on the CPU");
  TORCH_CHECK(tokens_.numel() > length_, "TokenDataset: ", tokens_.numel(),
              " tokens are too few for one window of ", length_, " and its target");
}

::torch::optional<size_t> TokenDataset::size() const {
  return static_cast<size_t>((tokens_.numel() - 1 - length_) / stride_ + 1);
}

::torch::data::Example<> TokenDataset::get(size_t index) {
  TORCH_CHECK_INDEX(index < *size(), "TokenDataset: window ", index, " of ", *size());
  const int64_t begin = static_cast<int64_t>(index) * stride_;
  const Tensor window = tokens_.slice(0, begin, begin + length_ + 1).to(at::kLong);
  return {window.slice(0, 0, length_), window.slice(0, 1)};
}

Batch TokenDataset::gather(const Tensor& indices) const {
  const Tensor windows = at::empty({indices.numel(), length_ + 1}, at::kLong);
  for (int64_t i = 0; i < indices.numel(); i++) {
    const int64_t begin = indices.const_data_ptr<int64_t>()[i] * stride_;
    windows.select(0, i).copy_(tokens_.slice(0, begin, begin + length_ + 1));
  }
  return {windows.slice(1, 0, length_).contiguous(), windows.slice(1, 1).contiguous()};
}

namespace {

template <class Dataset>
BatchSource make_batches(Dataset data, BatchOptions options) {
  TORCH_CHECK(options.batch_size > 0, "batches: batch_size is ", options.batch_size,
              "; it must be positive");
  const int64_t n = static_cast<int64_t>(*data.size());
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const Tensor order =
      options.shuffle ? at::randperm(n, generator, at::kLong) : at::arange(n, at::kLong);
  return [data = std::move(data), options, n, order](int64_t i) -> std::optional<Batch> {
    const int64_t begin = i * options.batch_size, end = std::min(n, begin + options.batch_size);
    if (begin >= n || (options.drop_last && end - begin < options.batch_size)) return std::nullopt;
    return data.gather(order.slice(0, begin, end));
  };
}

}  // namespace

BatchSource batches(MappedDataset data, BatchOptions options) {
  return make_batches(std::move(data), options);
}
BatchSource batches(TokenDataset data, BatchOptions options) {
  return make_batches(std::move(data), options);
}

}  // namespace tonnage
