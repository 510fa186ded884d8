// Whether rounds of the models fit the shared memory of the devices that people have. Host code only.
#include <gtest/gtest.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/decode.h"

namespace gem::cuda {
namespace {

constexpr std::uint32_t kDeclared = 15 * 1024;  // by the decode kernel itself: no more than that

struct Device {
  const char* name;
  std::uint32_t processors, block_kb;
  bool holds_31b;
};
constexpr Device kDevices[] = {
    {"RTX 4060 Ti", 34, 99, false}, {"RTX 3090", 82, 99, true}, {"RTX 4090", 128, 99, true},
    {"RTX 5090", 170, 99, true},    {"A100", 108, 163, true},   {"H200", 132, 227, true},
};

struct Size {
  const char* name;
  std::uint32_t layers, hidden, ffn;
  HeadShape sliding, full;
};
constexpr Size kSizes[] = {
    {"12B", 48, 3840, 15360, {16, 8, 256}, {16, 1, 512}},
    {"31B", 60, 5376, 21504, {32, 16, 256}, {32, 4, 512}},
};

DecodeSizes sizes_of(const Size& size, const DecodeLimits& limits, Format head) {
  DecodeSizes out;
  for (const std::uint32_t cols : {size.hidden, size.ffn, size.sliding.heads * size.sliding.head_dim,
                                   size.full.heads * size.full.head_dim}) {
    const std::uint32_t parts = limits.parts_of(cols);
    out.most_parts = std::max(out.most_parts, parts);
    out.most_part_chunks = std::max(out.most_part_chunks, (cols / kChunkCols + parts - 1) / parts);
  }
  out.least_chunk_bytes = chunk_bytes(Format::kQ4);
  out.most_chunk_bytes = chunk_bytes(head);
  out.shapes = {size.sliding, size.full};
  return out;
}

TEST(CudaLayout, RoundsOfTheModelsFitTheDevicesThatPeopleHave) {
  for (const Device& device : kDevices) {
    DecodeLimits limits;
    limits.processors = device.processors;
    limits.block_bytes = device.block_kb * 1024;
    limits.shared_bytes = limits.block_bytes - kDeclared;
    for (const Size& size : kSizes) {
      if (size.layers == 60 && !device.holds_31b) continue;
      for (const Format head : {Format::kQ4, Format::kQ8, Format::kS8, Format::kH16}) {
        const DecodeSizes sizes = sizes_of(size, limits, head);
        EXPECT_LE(sizes.most_parts, device.processors);
        for (const std::uint32_t rows : {1u, 2u, 8u, 9u, 16u, 32u, 128u}) {
          SCOPED_TRACE(::testing::Message() << device.name << ' ' << size.name << ' '
                                            << static_cast<int>(head) << ' ' << rows << " rows");
          ASSERT_TRUE(decode_layout(limits, sizes, size.layers, rows, 1));
          const auto layout = decode_layout(limits, sizes, size.layers, rows, std::min(rows, 16u));
          ASSERT_TRUE(layout);
          EXPECT_LE(layout->total, limits.shared_bytes);
          EXPECT_GE(layout->slots, 1u);
          if (rows <= 2) {  // one stream: its weights must come without a pause
            EXPECT_GE(layout->slots, head == Format::kH16 ? 1u : 2u);
          }
          EXPECT_GE(layout->slot_bytes, sizes.most_chunk_bytes);
          EXPECT_LE(layout->reduce_at, layout->region_bytes);
          if (device.block_kb == 227) {
            EXPECT_EQ(layout->most_queries, kMaxGroup);
          }
        }
      }
    }
  }
}

TEST(CudaLayout, TheKernelDeclaresNoMoreThanIsReckonedWith) {
  const std::vector<CudaDevice> devices = cuda_devices();
  if (devices.empty()) GTEST_SKIP() << "no CUDA device";
  const DecodeLimits limits = DecodeLimits::of(devices.front().id);
  EXPECT_LE(limits.block_bytes - limits.shared_bytes, kDeclared);
}

TEST(CudaLayout, WhatDoesNotFitIsSaid) {
  DecodeLimits limits;
  limits.processors = 132;
  limits.shared_bytes = limits.block_bytes = 32 * 1024;
  EXPECT_FALSE(decode_layout(limits, sizes_of(kSizes[0], limits, Format::kQ8), 48, 1, 1));
}

}  // namespace
}  // namespace gem::cuda
