#include "backend/cuda/cache_snapshots.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/parallel_copy.h"

namespace gem::cuda {
namespace {

constexpr std::size_t kPiece = std::size_t{8} << 20;  // that crosses the bus at a time
constexpr std::size_t kAlignment = 256;

}  // namespace

CacheSnapshots::CacheSnapshots(int device, std::size_t most) : device_(device) {
  try {
    for (; most >= kBlock; most -= kBlock) {
      Block block;
      block.memory.resize(kBlock);
      blocks_.push_back(std::move(block));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTooLarge) throw;
    cudaGetLastError();
  }
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  check(cudaEventCreateWithFlags(&written_, cudaEventDisableTiming), "creating an event");
  for (Half& half : halves_) {
    half.memory.reserve(kPiece);
    check(cudaEventCreateWithFlags(&half.arrived, cudaEventDisableTiming), "creating an event");
  }
  thread_ = std::thread([this] { run(); });
}

CacheSnapshots::~CacheSnapshots() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (Half& half : halves_) cudaEventDestroy(half.arrived);
  cudaEventDestroy(written_);
  cudaStreamDestroy(stream_);
}

std::optional<CacheSnapshots::Place> CacheSnapshots::reserve(std::size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(mutex_);
  const auto place_in = [&](Block& block) {
    Place place{&block, block.memory.data() + block.used};
    block.used += bytes;
    ++block.under_way;
    return place;
  };
  if (!blocks_.empty() && blocks_.back().used + bytes <= blocks_.back().memory.size())
    return place_in(blocks_.back());
  const auto idle =
      std::find_if(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.under_way == 0; });
  if (idle == blocks_.end() || bytes > kBlock) return std::nullopt;
  idle->used = 0;
  blocks_.splice(blocks_.end(), blocks_, idle);
  return place_in(blocks_.back());
}

std::shared_future<void> CacheSnapshots::fetch(const Place& place, const std::byte* from, std::size_t bytes,
                                               std::byte* to, std::shared_ptr<const void> owner,
                                               cudaStream_t stream) {
  check(cudaEventRecord(written_, stream), "keeping a cache");
  check(cudaStreamWaitEvent(stream_, written_, 0), "keeping a cache");
  const std::lock_guard lock(mutex_);
  copies_.push_back({place.block, from, bytes, to, std::move(owner), {}});
  changed_.notify_all();
  return copies_.back().done.get_future().share();
}

void CacheSnapshots::run() {
  cudaSetDevice(device_);  // what fails on another device is found by the copies
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !copies_.empty(); });
    if (copies_.empty()) return;
    Copy copy = std::move(copies_.front());
    copies_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      bring(copy);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --copy.block->under_way;
    lock.unlock();
    if (failure != nullptr) {
      copy.done.set_exception(failure);
    } else {
      copy.done.set_value();
    }
    copy.owner.reset();  // not under the lock: it may be the last, with much memory to give back
    lock.lock();
  }
}

// While a piece comes from the device the one before goes to its place.
void CacheSnapshots::bring(const Copy& copy) {
  const auto piece = [&](std::size_t i) { return std::min(kPiece, copy.bytes - i * kPiece); };
  const std::size_t pieces = (copy.bytes + kPiece - 1) / kPiece;
  const auto arrived = [&](std::size_t i) {
    Half& half = halves_[i % 2];
    check(cudaEventSynchronize(half.arrived), "keeping a cache");
    parallel_copy(copy.to + i * kPiece, half.memory.data(), piece(i));
  };
  for (std::size_t i = 0; i < pieces; ++i) {
    Half& half = halves_[i % 2];
    check(cudaMemcpyAsync(half.memory.data(), copy.from + i * kPiece, piece(i), cudaMemcpyDeviceToHost,
                          stream_),
          "keeping a cache");
    check(cudaEventRecord(half.arrived, stream_), "keeping a cache");
    if (i > 0) arrived(i - 1);
  }
  if (pieces > 0) arrived(pieces - 1);
}

}  // namespace gem::cuda
