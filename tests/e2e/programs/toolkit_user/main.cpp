// A user's program on the installed toolkit, checked against plain training. It takes one half of
// the library: the other is compiled in the same way, and takes as long.
#include <tonnage/torch/checkpoint.h>
#include <tonnage/torch/memory.h>
#include <torch/nn/modules/linear.h>  // torch/torch.h would take as long to compile as all of this
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>
#include <cstdio>

torch::Tensor train(bool with_toolkit) {
  torch::manual_seed(1);
  torch::nn::Linear first(8, 32), second(32, 4);
  std::vector<torch::Tensor> parameters = first->parameters();
  for (const auto& p : second->parameters()) parameters.push_back(p);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
  const torch::Tensor x = torch::randn({16, 8});
  for (int step = 0; step < 5; step++) {
    optimizer.zero_grad();
    auto hidden = [first](torch::Tensor in) mutable { return torch::gelu(first(in)); };
    second(with_toolkit ? tonnage::checkpoint(hidden, x) : hidden(x)).square().mean().backward();
    optimizer.step();
  }
  return torch::nn::utils::parameters_to_vector(parameters).detach();
}

int main() {
  const bool equal = torch::equal(train(true), train(false));
  std::printf("%s, 1.5 KiB is %s\n", equal ? "the same bits" : "different",
              tonnage::format_bytes(1536).c_str());
  return equal ? 0 : 1;
}
