// Between hosts, over what UCX finds: RDMA verbs, else TCP. The receive is given to UCX before the sender hears of it,
// so that nothing ever arrives unexpected. UCX calls for each receive as it ends: in the order of arrival, of which
// several may end in one look.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/ucx.h"
#include "lanes/lane.h"

namespace megatronapp::rdma {

// One a process. Used by one thread at a time: under the engine's lock.
class UcxWorker {
public:
    UcxWorker();
    ~UcxWorker();
    UcxWorker(const UcxWorker&) = delete;
    UcxWorker& operator=(const UcxWorker&) = delete;

    std::string address() const;
    int descriptor() const { return descriptor_; }
    bool progress() { return library_.progress(worker_) != 0; }
    // False: something has happened already, don't sleep.
    bool arm() { return library_.arm(worker_) == UcxLibrary::kOk; }
    void* handle() const { return worker_; }
    // Where UCX tells of a lane's peer: it may do so until the worker is gone, so that this is the worker's and not the lane's.
    int& new_error() { return errors_.emplace_back(UcxLibrary::kOk); }
    // Until the worker is gone these are in use.
    void keep(OperationPtr operation) { kept_.push_back(std::move(operation)); }

private:
    const UcxLibrary& library_;
    void* context_ = nullptr;
    void* worker_ = nullptr;
    int descriptor_ = -1;
    std::deque<int> errors_;
    std::vector<OperationPtr> kept_;
};

class UcxLane final : public Lane {
public:
    // Throws std::runtime_error when UCX finds no way to the address.
    UcxLane(Matcher& core, UcxWorker& worker, const std::string& address);
    ~UcxLane() override;
    UcxLane(const UcxLane&) = delete;
    UcxLane& operator=(const UcxLane&) = delete;

    const char* name() const override { return "ucx"; }
    void expect(const OperationPtr& receive, Message& message) override;
    void start(const OperationPtr& send, const Message& ready) override;
    bool progress() override;
    bool writes_late() const override { return true; }
    void release() override;
    void ended(Operation& operation) override;

private:
    static void received(void* request, int status, const void* info, void* lane);
    void close_endpoint();
    void* checked(void* request) const;
    bool finish_sends();
    bool finish_receives();
    void finish(const OperationPtr& operation);

    Matcher& core_;
    UcxWorker& worker_;
    const UcxLibrary& library_;
    void* endpoint_ = nullptr;
    int& error_;  // what UCX told of the peer
    std::vector<OperationPtr> sending_;
    std::unordered_map<void*, OperationPtr> receiving_;  // by request
    std::deque<OperationPtr> received_;                  // not told yet, in the order of arrival
};

}  // namespace megatronapp::rdma
