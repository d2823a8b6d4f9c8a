// The engine of one rank: all its peers, one lock, one progress thread, and waits that help.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
    double launch_wait_seconds = 1;  // how long wait_stream waits for earlier sends to be given to the GPU
    std::size_t chunk_bytes = 0;  // the most that is copied at a time; 0: as is fastest
    std::size_t receive_pool_bytes = 512 << 20;  // GPU memory that is kept to receive into, of all peers
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
    // The stream goes on when the operation has ended. False: its lane has no streams, so the host must wait.
    //
    // Before that all earlier sends of GPU memory are given to the GPU, for which the peers must have posted their ends;
    // it is waited for them, up to a limit. Then no host is needed to end what a stream waits for: a host may be stuck in
    // the driver, whose queue is full behind the waiting stream.
    bool wait_stream(const OperationPtr& operation, void* stream);
    void cancel(const OperationPtr& operation);
    // What has ended since the last call and was not waited for.
    std::vector<OperationPtr> drain();
    int descriptor();

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
    bool progress(bool sockets);
    bool poll();
    void tick();
    void sleep(std::unique_lock<std::mutex>& lock, Sleeper who, std::int64_t longest_ns);
    int sleep_milliseconds(std::int64_t longest_ns) const;
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
    Completions completions_;
    std::unique_ptr<UcxWorker> ucx_;
    std::map<int, std::unique_ptr<Peer>> peers_;
    std::map<int, bool> output_watched_;
    std::thread thread_;
};

}  // namespace megatronapp::rdma
