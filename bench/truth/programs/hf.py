"""A user's script with transformers' Trainer.

usage: hf.py MODEL BATCH LENGTH [key=value …]      the last are TrainingArguments, and lora=True
"""

import sys
import tempfile

import torch
from transformers import *

name, batch, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kw = {
    k: eval(v) if v[:1] in "0123456789TF[{'" else v
    for k, v in (a.split("=", 1) for a in sys.argv[4:])
}
lora = kw.pop("lora", False)
torch.manual_seed(0)
V = 32000
make = {
    "gpt2": lambda: AutoModelForCausalLM.from_config(GPT2Config()),
    "llama": lambda: AutoModelForCausalLM.from_config(
        LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=12,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=V,
        )
    ),
    "bert": lambda: AutoModelForMaskedLM.from_config(BertConfig()),
    "t5": lambda: AutoModelForSeq2SeqLM.from_config(
        T5Config(
            d_model=512, d_ff=2048, num_layers=6, num_heads=8, d_kv=64, decoder_start_token_id=0
        )
    ),
    "mixtral": lambda: AutoModelForCausalLM.from_config(
        MixtralConfig(
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            num_local_experts=8,
            vocab_size=V,
        )
    ),
}
model = make[name]()
if lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    if kw.get("gradient_checkpointing"):
        model.enable_input_require_grads()


class Data(torch.utils.data.Dataset):

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randint(0, 5000, (length,), generator=g)
        return {"input_ids": x, "labels": x.clone()}


args = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=batch,
    max_steps=100,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    dataloader_num_workers=2,
    **kw,
)
Trainer(model, args, train_dataset=Data()).train()
