// The prompt cache's second tier: states in files of one folder, for what memory has no room for and for
// after a restart.
//
// Two threads of its own write and read; nobody need wait for them. While memory is not full a state waits a
// moment before it is written, in case the next turn of its conversation takes its place; at most
// kMostWaiting wait. Files appear whole under their names (temporary name, fsync, rename). The least recently
// used ones leave, also those that other models wrote.
//
// One file, in the machine's byte order:
//   "gemstate", version, the identity, positions, first ring position, bytes of a fixed row and of a ring
//   row; the tokens; SHA-256 of these; the fixed rows; the rings' rows; SHA-256 of all before (all in hex
//   digits).
// Its name is <16 hex digits of the identity>-<32 of the tokens' SHA-256>.gemstate. The identity stands for
// everything that the rows' bits depend on (engine/cache_identity.h), so what is found is what would be
// computed. Every length is checked against the file and the caller's cache before anything is allocated,
// both digests before anything is used. What does not hold is removed, with a line in the log.
//
// The files hold what was said, as tokens: they are the user's alone (0600, in a folder of 0700), and they
// are not encrypted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/kept_prompt.h"

namespace gem {

struct CacheStoreOptions {
  std::string folder;
  // Bytes of all files together; nothing: what is there and half of what the disk has free, at most 16 GiB.
  std::optional<std::uint64_t> budget = {};
  std::string identity;                     // 64 hex digits: cache_identity()
  KvPlan plan;                              // of the caches that the states are for
  std::chrono::milliseconds settle{2'000};  // that a state waits for a longer one to take its place
  std::chrono::milliseconds flush{10'000};  // at most that long the end waits for what is not yet written
  std::function<void(const std::string&)> log = {};  // lines for people, from any thread
  std::function<void()> before_load = {};            // by the thread that reads (tests: a slow disk)
};

class CacheStore {
 public:
  static constexpr std::size_t kMostWaiting = 4;
  static constexpr std::size_t kMostFiles = 4096;
  // Reading a state back is worth it for that many tokens, and for an eighth of the state's own.
  static constexpr std::uint32_t kLeastGain = 32;

  // Makes the folder where there is none. Error(kUsage) where it cannot be used: no folder, not to be
  // written, open to others while it holds other things, in use by another process.
  explicit CacheStore(CacheStoreOptions options);
  ~CacheStore();  // writes what waits, at most `flush` long, and gives up the rest
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  const KvPlan& plan() const { return options_.plan; }

  // Has `state` written some time; at once when memory is short and it may have to leave soon. Its plan must
  // be plan().
  void put(std::shared_ptr<const KeptPrompt> state, bool at_once);
  // Its memory is needed: forgets it unless it is being written.
  void withdraw(const KeptPrompt& state);
  // Bytes of the state that is being written; they are not free before.
  std::uint64_t writing() const;
  // Waits until nothing waits to be written or is, without settling.
  void flush();
  // From now on nothing more is written; what is being written is given up.
  void abandon();

  // The state on disk that gives the most of `prompt`, at least one token being left, if that is worth it to
  // somebody who has `have` tokens already and room for `room` bytes.
  struct Match {
    std::string file;
    std::uint32_t length = 0;  // tokens that it gives
    std::uint64_t bytes = 0;   // of its rows
  };
  std::optional<Match> find(std::span<const std::int32_t> prompt, std::uint32_t have,
                            std::uint64_t room) const;
  // A state on its way from its file into memory.
  class Load {
   public:
    bool done() const { return done_; }
    void wait() const { done_.wait(false); }
    // When it is done. Null: the file does not hold what it should and is gone; find() does not name it
    // again.
    const std::shared_ptr<const KeptPrompt>& state() const { return state_; }

   private:
    friend class CacheStore;
    std::shared_ptr<const KeptPrompt> state_;
    std::atomic<bool> done_ = false;
  };
  // Has it read back, for caches with rows of these bytes; whoever asks for a file that is being read gets
  // the same Load. Null: it has left meanwhile. The memory is taken here: Error(kTooLarge) when there is
  // none.
  std::shared_ptr<const Load> load(const Match& match, std::size_t fixed_row, std::size_t ring_row,
                                   const KeptRows::Sum& sum);
  // Called after each, from the thread that reads.
  void on_loaded(std::function<void()> call);

  struct Status {
    std::uint64_t budget = 0, bytes = 0;  // of all files
    std::uint64_t states = 0;             // that find() may name
    std::uint64_t foreign = 0;            // of other models, programs or cache types
    std::uint64_t waiting = 0;
    std::uint64_t written = 0, loaded = 0, evicted = 0;  // so far
    std::uint64_t skipped = 0;   // not written: too large, too many waiting, the disk full
    std::uint64_t rejected = 0;  // damaged files that were removed
  };
  Status status() const;

 private:
  class Reader;
  struct Entry {
    std::vector<std::int32_t> tokens;  // none: another model's
    std::uint32_t first_ring = 0;
    std::uint64_t rows = 0;   // bytes of its rows
    std::uint64_t bytes = 0;  // of the file
    std::uint64_t used = 0;   // grows with every use
  };
  struct Waiting {
    std::shared_ptr<const KeptPrompt> state;
    std::chrono::steady_clock::time_point due;
  };
  struct Reading {
    std::string file;
    std::shared_ptr<const KeptPrompt> state;
    std::vector<std::span<std::byte>> rows;  // of `state`, in the file's order
    std::size_t fixed_row = 0, ring_row = 0;
    std::shared_ptr<Load> load;
  };

  void open_folder();
  void scan();
  void serve_writes();
  void serve_reads();
  bool read(const Reading& what);
  void write(const KeptPrompt& state);
  bool make_room(std::uint64_t bytes);   // with the mutex held
  void forget(const std::string& name);  // likewise; the file too
  void reject(const std::string& name, const char* why);
  void touch(const std::string& name, Entry& entry);
  bool hurried() const;  // the writer is to stop in the middle
  std::string path(const std::string& name) const { return options_.folder + "/" + name; }
  std::string name_of(std::span<const std::int32_t> tokens) const;
  void log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  CacheStoreOptions options_;
  std::uint64_t budget_ = 0;
  int lock_ = -1;  // the open file that others find locked

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry> files_;
  std::uint64_t bytes_ = 0;
  std::uint64_t uses_ = 0;
  std::vector<Waiting> waiting_;  // oldest first
  std::shared_ptr<const KeptPrompt> writing_;
  std::deque<Reading> reading_;  // the first one now
  std::condition_variable more_to_read_;
  std::function<void()> on_loaded_;
  bool flushing_ = false;
  std::optional<std::chrono::steady_clock::time_point> stop_by_;  // set: the end
  bool warned_ = false;                                           // that writing fails
  Status counts_;
  std::atomic<bool> ending_ = false;
  std::thread writer_, reader_;
};

}  // namespace gem
