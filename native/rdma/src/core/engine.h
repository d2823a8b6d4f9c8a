// The engine of one rank: all its peers, one lock, one progress thread, and waits that help.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/operation.h"
#include "core/completions.h"
#include "core/peer.h"

namespace megatronapp::rdma {

struct Options {
    double spin_seconds = 50e-6;  // how long a thread looks for work before it sleeps
    double heartbeat_seconds = 1;
    double dead_after_seconds = 10;
    bool checksum = false;
    std::size_t chunk_bytes = 0;  // the most that is copied at a time; 0: as is fastest
    std::size_t receive_pool_bytes = 512 << 20;  // GPU memory that is kept to receive into, of all peers
    std::uint32_t open_rounds = 4;
    std::size_t in_flight_bytes = 0;  // sends to one peer that are given to its lanes at once; 0: all
};

class Engine final : public Listener {
public:
    explicit Engine(const Options& options);
    ~Engine() override;
    // In a fork there is none of its threads, and its locks may be held for ever: it must be left as it is.
    bool forked() const;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // The descriptors stay the caller's: the socket until the engine is closed. Throws std::system_error.
    void attach(int rank, const Link& link);
    // UCX's address of this engine, for peers. Throws std::runtime_error where there is no UCX.
    std::string open_ucx();

    // A new operation that says what is to be moved. Throws std::out_of_range for a peer that is not connected,
    // std::invalid_argument for a tag that was used. With a lost peer it has failed when this returns.
    void post(const OperationPtr& operation, double deadline_seconds);
    // Helps until it has ended or the time is over; whether it has ended.
    bool wait(const OperationPtr& operation, double timeout_seconds);
    // Helps until one of them has ended or the time is over: which one ended first, or none.
    std::optional<std::size_t> wait_any(const std::vector<OperationPtr>& operations, double timeout_seconds);
    // The stream goes on when the operation has ended; this thread does not wait. False: it is of host memory, for which no
    // stream can wait. Throws Exhausted.
    bool wait_stream(const OperationPtr& operation, void* stream);
    // Helps until all sends of GPU memory that were posted are given to the GPU, or the time is over; whether they are.
    //
    // Then no host is needed to end what a stream waits for. A host may be stuck in the driver: behind a waiting stream its
    // queue fills up, and then no thread can give a copy to the GPU, which the peer may need to end that wait.
    bool flush(double timeout_seconds);
    // Whether it is taken back. Helps until that is known, for which a peer may have to be asked; none: not in time.
    std::optional<bool> cancel(const OperationPtr& operation, double timeout_seconds);
    // What peers have to send for which nothing was posted here, in order of its coming: those tags whose masked bits are
    // `value`, of one peer or (-1) of all. Helps until there is one or the time is over.
    std::vector<PendingSend> probe(int peer, std::uint64_t mask, std::uint64_t value, double timeout_seconds);
    // What has ended since the last call and was not waited for.
    std::vector<OperationPtr> drain();
    int descriptor();

    // By peer, the bytes that its lanes move now, as far as is known by now; 0 where Options::in_flight_bytes limits nothing.
    std::map<int, std::uint64_t> in_flight();
    std::map<int, std::string> failed();
    // Ends every operation, on any thread; nothing can be posted afterwards.
    void abort(const std::string& reason);
    // Waits for open sends, tells the peers, ends the progress thread and gives up the memory that is shared with them.
    // False: not all was sent in time.
    bool close(double timeout_seconds);

private:
    class Turn;
    enum class Sleeper { kNobody, kProgressThread, kHelper };

    static void take(std::unique_lock<std::mutex>& lock);
    void ended(const OperationPtr& operation) override;
    void gone(int descriptor) override;
    void wake() override;
    bool progress(bool sockets);
    bool poll();
    void tick();
    void sleep(std::unique_lock<std::mutex>& lock, Sleeper who, std::int64_t longest_ns);
    std::int64_t sleep_ns(std::int64_t longest_ns) const;
    void refuse_capture(const Operation& operation, void* stream) const;
    bool polled() const;
    void begin_polling();
    bool end_polling(bool somebody_polls_soon);
    void watch_outputs();
    void kick();
    void wake_helper();
    void leave_to_helpers(std::unique_lock<std::mutex>& lock);
    void run();
    bool spin(std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done);
    bool drive(std::unique_lock<std::mutex>& lock, std::int64_t deadline_ns, const std::function<bool()>& done);
    void stop_thread();
    std::size_t divide_pool(std::size_t more_lanes);
    void wait_for_gpu();
    void watch(int descriptor, bool output, int how);

    Options options_;
    int process_;  // that made it: a fork has none of its threads
    std::mutex mutex_;
    std::atomic<int> callers_{0};  // who want the lock: the progress thread lets them in
    std::atomic<bool> stop_{false};
    std::atomic<bool> gpu_{false};  // there are lanes of GPU memory
    int helpers_ = 0;  // threads that wait: the progress thread leaves the work to them
    unsigned helps_ = 0;  // how often one had to look
    int pollers_ = 0;  // threads that look for messages now
    Sleeper asleep_ = Sleeper::kNobody;  // in epoll
    bool dozing_ = false;  // the progress thread will look again very soon
    bool parked_ = false;  // it will not before a sleeping helper wakes
    std::condition_variable ended_;
    std::condition_variable relieved_;
    bool aborted_ = false;
    std::string abort_reason_;
    int epoll_;
    int wake_;
    unsigned polls_ = 0;
    std::int64_t ticked_ns_ = 0;
    std::int64_t moved_ns_ = 0;
    std::uint64_t next_id_ = 1;
    std::uint64_t ended_count_ = 0;
    Completions completions_;
    std::unique_ptr<UcxWorker> ucx_;
    const std::shared_ptr<StreamWaits> stream_waits_ = std::make_shared<StreamWaits>();  // lanes may outlive the engine
    std::map<int, std::unique_ptr<Peer>> peers_;
    std::map<int, bool> output_watched_;
    std::thread thread_;
};

}  // namespace megatronapp::rdma
