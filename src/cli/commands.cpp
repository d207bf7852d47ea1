#include "cli/commands.h"

#include "cli/explain.h"
#include "cli/gpus.h"
#include "cli/recorder_build.h"
#include "cli/run.h"

namespace tonnage::cli {

namespace {

constexpr const char* kAbout =
    "What the GPU memory of neural-network training does, without a GPU: your own command runs, "
    "unmodified, on a virtual GPU.";

constexpr const char* kFooter = R"(
Examples:
  tonnage run --gpu "RTX 3060" -- python train.py --batch-size 64
  tonnage explain snapshot.pickle
  tonnage run --gpu a100-80gbx4 --json -- torchrun --nproc-per-node 4 train.py > report.json
  tonnage gpus
Exit codes: 0 success, 1 failure, 2 wrong usage, 3 the answer is no (does not fit, a threshold was
crossed, a run that cannot be judged);
`tonnage run` exits with its command's own code.)";

}  // namespace

void add_commands(CLI::App& app, int& exit_code) {
  app.name("tonnage");
  app.description(kAbout);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("tonnage " TONNAGE_VERSION));
  add_run_command(app, exit_code);
  add_gpus_command(app, exit_code);
  add_report_command(app, exit_code);
  add_explain_commands(app, exit_code);
  add_doctor_command(app, exit_code);
  add_recorder_command(app, exit_code);
  add_version_command(app, exit_code);
  add_reference_commands(app, exit_code);
}

}  // namespace tonnage::cli
