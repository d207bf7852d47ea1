#include "report/words/words.h"

#include <fmt/format.h>

#include <unordered_map>

#include "report/words/tables.h"

namespace tonnage::report {
namespace {

using namespace analysis;

std::string nth(uint32_t number) {
  const uint32_t tens = number % 100;
  const char* ending = tens >= 11 && tens <= 13 ? "th"
                       : number % 10 == 1       ? "st"
                       : number % 10 == 2       ? "nd"
                       : number % 10 == 3       ? "rd"
                                                : "th";
  return fmt::format("{}{}", number, ending);
}

std::string unit_text(bool are_steps, char form) {
  if (form == 'a') return are_steps ? "a step" : "an iteration";
  if (form == 's') return are_steps ? "steps" : "iterations";
  return are_steps ? "step" : "iteration";
}

// form: the letter behind the colon, or 0.
std::string figure_text(const Figure& figure, char form) {
  switch (figure.kind) {
    case Figure::Kind::kBytes: return size_text(figure.number);
    case Figure::Kind::kCount: return std::to_string(figure.number);
    case Figure::Kind::kTensors:
      return figure.number == 1 ? "1 tensor" : fmt::format("{} tensors", figure.number);
    case Figure::Kind::kPercent:
      return fmt::format("{:.{}f} %", 100 * figure.ratio, figure.decimals);
    case Figure::Kind::kTimes: return fmt::format("{:.{}f}", figure.ratio, figure.decimals);
    case Figure::Kind::kSite: return at_text(figure.site);
    case Figure::Kind::kName: return figure.name;
    case Figure::Kind::kPrinted:
      return fmt::format("{} ({})", size_text(figure.number), figure.name);
    case Figure::Kind::kUnit: return unit_text(figure.are_steps, form);
    case Figure::Kind::kEvery:
      return figure.every == 1
                 ? "Every " + unit_text(figure.are_steps, 0)
                 : fmt::format("Every {} {}", nth(figure.every), unit_text(figure.are_steps, 0));
    case Figure::Kind::kRate:
      return size_text(figure.number) + " " +
             (figure.every == 1
                  ? unit_text(figure.are_steps, 'a')
                  : fmt::format("every {} {}", nth(figure.every), unit_text(figure.are_steps, 0)));
    case Figure::Kind::kLibrary:
      return library_title(static_cast<sources::LogFramework>(figure.number));
  }
  return "";
}

// "{0}" and "{0:a}" become the figures.
std::string filled(std::string_view text, const std::vector<Figure>& figures) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{') {
      out += text[at];
      continue;
    }
    const size_t end = text.find('}', at);
    const std::string_view inside = text.substr(at + 1, end - at - 1);
    const auto index = static_cast<size_t>(inside[0] - '0');
    if (index < figures.size())
      out += figure_text(figures[index], inside.size() > 2 ? inside[2] : '\0');
    at = end;
  }
  return out;
}

using StatementTable = std::unordered_map<Statement, const char*>;

const StatementTable& statements() {
  static const StatementTable table = [] {
    StatementTable all;
    for (const auto rows : {out_of_memory_words(), growth_words(), library_words()})
      for (const StatementRow& row : rows) all.emplace(row.statement, row.text);
    return all;
  }();
  return table;
}

const RemedyRow* row_of(Remedy remedy) {
  static const auto table = [] {
    std::unordered_map<Remedy, const RemedyRow*> all;
    for (const RemedyRow& row : remedy_words()) all.emplace(row.remedy, &row);
    return all;
  }();
  const auto found = table.find(remedy);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace

std::string at_text(const Site& site) {
  const std::string text = site_text(site);
  return text.empty()              ? "at a line that the history does not name"
         : text.starts_with("in ") ? text
                                   : "at " + text;
}

std::string words_of(const Fact& fact) {
  const auto found = statements().find(fact.statement);
  return found == statements().end() ? "" : filled(found->second, fact.figures);
}

std::string words_of(const std::vector<Fact>& facts) {
  std::string out;
  for (const Fact& fact : facts) {
    const std::string words = words_of(fact);
    if (!words.empty()) out += (out.empty() ? "" : " ") + words;
  }
  return out;
}

AdviceWords words_of(const Advice& advice) {
  const RemedyRow* row = row_of(advice.remedy);
  if (!row) return {};
  return {filled(row->text, advice.figures), filled(row->setting, advice.figures)};
}

FindingWords words_of(const Finding& finding) {
  FindingWords out;
  out.title = words_of(finding.title);
  out.text = words_of(finding.text);
  for (const Evidence& evidence : finding.evidence) out.evidence.push_back(words_of(evidence.fact));
  for (const Advice& advice : finding.advice) out.advice.push_back(words_of(advice));
  return out;
}

const char* library_title(sources::LogFramework framework) {
  using F = sources::LogFramework;
  switch (framework) {
    case F::kPyTorch: return "PyTorch";
    case F::kTensorFlow: return "TensorFlow";
    case F::kJax: return "JAX";
    case F::kNccl: return "NCCL";
    case F::kVllm: return "vLLM";
    case F::kSglang: return "SGLang";
    case F::kTgi: return "text-generation-inference";
    case F::kTensorRt: return "TensorRT";
    case F::kLlamaCpp: return "llama.cpp";
    case F::kOllama: return "Ollama";
    case F::kOnnxRuntime: return "ONNX Runtime";
    case F::kXgboost: return "XGBoost";
    case F::kRmm: return "RMM (RAPIDS)";
    case F::kPaddle: return "Paddle";
    case F::kCupy: return "CuPy";
    case F::kNumba: return "Numba";
    case F::kTriton: return "Triton";
    case F::kCatBoost: return "CatBoost";
    case F::kLightGbm: return "LightGBM";
    case F::kMxnet: return "MXNet";
    case F::kCaffe: return "Caffe";
    case F::kFaiss: return "Faiss";
    case F::kJulia: return "CUDA.jl";
    case F::kOpenCv: return "OpenCV";
    case F::kBitsandbytes: return "bitsandbytes";
    case F::kCTranslate2: return "CTranslate2";
    case F::kRay: return "Ray";
    case F::kAccelerate: return "Accelerate";
    case F::kDeepSpeed: return "DeepSpeed";
    case F::kTorchrun: return "torchrun";
    case F::kWarp: return "Warp";
    case F::kUltralytics: return "Ultralytics";
    case F::kComfyUi: return "ComfyUI";
    case F::kWebUi: return "the Stable Diffusion web UI";
    case F::kDiffusers: return "Diffusers";
    case F::kTransformers: return "Transformers";
    case F::kPyCuda: return "PyCUDA";
    case F::kOpenCl: return "An OpenCL library";
    case F::kUnknown: break;
  }
  return "A library";
}

}  // namespace tonnage::report
