// Threads that sleep while there is nothing to do. OpenMP's spin for a while, which on a busy
// machine costs more CPU than the work of a small fit; how long is decided when its library is
// loaded, and cannot be changed from here.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

class ThreadPool {
 public:
  // Calls work(first) in n threads at once, of which the caller's is the first, and waits for all
  // of them. Alone where another call has the pool: its threads are busy then. The work must not
  // throw, and has to be done when the first of them returns, however few took part.
  void run(int n, const std::function<void(bool first)>& work) {
    std::unique_lock<std::mutex> own(owner_, std::try_to_lock);
    if (n > 1 && own.owns_lock()) {
      std::lock_guard<std::mutex> guard(lock_);
      try {
        for (; n_threads_ < n - 1; ++n_threads_) std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {  // those there are do the work
      }
      work_ = &work;
      to_start_ = running_ = std::min(n - 1, n_threads_);
      wake_.notify_all();
    }
    work(true);
    if (n > 1 && own.owns_lock()) {
      std::unique_lock<std::mutex> guard(lock_);
      running_ -= std::exchange(to_start_, 0);  // those still asleep would find nothing left to do
      done_.wait(guard, [this] { return running_ == 0; });
    }
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> guard(lock_);
    for (;;) {
      wake_.wait(guard, [this] { return to_start_ > 0; });
      --to_start_;
      const auto* work = work_;
      guard.unlock();
      (*work)(false);
      guard.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex owner_, lock_;
  std::condition_variable wake_, done_;
  const std::function<void(bool)>* work_ = nullptr;
  int n_threads_ = 0, to_start_ = 0, running_ = 0;
};
