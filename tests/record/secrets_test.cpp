#include "record/secrets.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace tonnage::record {
namespace {

// Arguments are written with | between them.
std::string hidden(std::string line) {
  for (char& c : line)
    if (c == '|') c = '\0';
  line.push_back('\0');
  line.resize(hide_secrets(line.data(), line.size()));
  line.pop_back();
  for (char& c : line)
    if (c == '\0') c = '|';
  return line;
}

TEST(Secrets, GivenToANameThatSaysSo) {
  EXPECT_EQ("train.py|--api-key=***", hidden("train.py|--api-key=abcdef"));
  EXPECT_EQ("--apiKey=***", hidden("--apiKey=abcdef"));
  EXPECT_EQ("--api_key|***|x", hidden("--api_key|abcdef|x"));
  EXPECT_EQ("--token|***", hidden("--token|x-y-z-1"));
  EXPECT_EQ("-password=***", hidden("-password=123456"));
  EXPECT_EQ("env|HF_TOKEN=***|python", hidden("env|HF_TOKEN=abc.def|python"));
  EXPECT_EQ("WANDB_API_KEY=***", hidden("WANDB_API_KEY=0123456789"));
  EXPECT_EQ("+hub.access_token=***", hidden("+hub.access_token=tttt"));
  EXPECT_EQ("--db-passwd|***", hidden("--db-passwd|pppp"));
  EXPECT_EQ("--hub_token=**", hidden("--hub_token=ab"));
  EXPECT_EQ("AWS_SECRET_ACCESS_KEY=***", hidden("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG"));
}

TEST(Secrets, InLinesOfShellHeadersAndJson) {
  EXPECT_EQ("bash|-c|HF_TOKEN=*** python train.py --api-key *** --lr 1",
            hidden("bash|-c|HF_TOKEN=abcd python train.py --api-key efgh --lr 1"));
  EXPECT_EQ("curl|-H|Authorization: ***", hidden("curl|-H|Authorization: Bearer abc.def.ghi"));
  EXPECT_EQ("-H|X-Api-Key:***", hidden("-H|X-Api-Key:1234567"));
  EXPECT_EQ("{\"api_key\": \"***\", \"lr\": 0.1}", hidden("{\"api_key\": \"s e c\", \"lr\": 0.1}"));
  EXPECT_EQ("--password='***' next", hidden("--password='a b c' next"));
  EXPECT_EQ("curl|-u|me:***", hidden("curl|-u|me:topsecret"));
  EXPECT_EQ("wandb|login|***", hidden("wandb|login|0123456789012345678901234567890123456789"));
}

TEST(Secrets, InAddresses) {
  EXPECT_EQ("https://***@host/path", hidden("https://user:password@host/path"));
  EXPECT_EQ("--tracking-uri=https://***@host:80", hidden("--tracking-uri=https://tok@host:80"));
  EXPECT_EQ("https://x.org/get?token=***&page=2", hidden("https://x.org/get?token=abcd&page=2"));
  EXPECT_EQ("s3://b/k?X-Amz-Signature=***", hidden("s3://b/k?X-Amz-Signature=abcdef"));
  EXPECT_EQ("https://example.org/a@b", hidden("https://example.org/a@b"));
}

TEST(Secrets, KeysOfWellKnownServices) {
  EXPECT_EQ("push|***", hidden("push|hf_abcdefghijklmnopqrstuvwx"));
  EXPECT_EQ("x=***", hidden("x=ghp_abcdefghijklmnopqrstuvwx0123"));
  EXPECT_EQ("***", hidden("sk-proj-abcdefghijklmnopqrst"));
  EXPECT_EQ("--id=***", hidden("--id=AKIAIOSFODNN7EXAMPLE"));
}

TEST(Secrets, OtherArgumentsStay) {
  for (const char* line : {"python|train.py|--batch-size|16|--lr=1e-4",
                           "--tokenizer=gpt2",
                           "--tokenizer|bert",
                           "--max-tokens=512",
                           "--max-token|512",
                           "--num_tokens|100",
                           "--pad-token|<pad>",
                           "--token-ids=1,2",
                           "--keypoints|17",
                           "--key=value",
                           "--monkey=1",
                           "--author=me",
                           "--output=/data/secretary/x",
                           "torchrun|--nproc-per-node|2|train.py",
                           "-c|import torch",
                           "--rdzv-endpoint=localhost:29500",
                           "--bypass=1",
                           "--compass|n",
                           "hf_hub",
                           "sk-learn",
                           "http://localhost:8080/metrics",
                           "a:b",
                           "C:\\x",
                           ""})
    EXPECT_EQ(line, hidden(line));
}

TEST(Secrets, AnyBytesAreRead) {
  uint64_t state = 1;
  std::string alphabet = "abk-_=:/@'\" token&;password";
  alphabet.push_back('\0');
  for (int round = 0; round < 20000; round++) {
    std::string line;
    state = state * 6364136223846793005u + 1442695040888963407u;
    const size_t n = (state >> 33) % 40;
    for (size_t i = 0; i < n; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      line.push_back(alphabet[(state >> 33) % alphabet.size()]);
    }
    const size_t left = hide_secrets(line.data(), line.size());
    ASSERT_LE(left, line.size());
  }
}

}  // namespace
}  // namespace tonnage::record
