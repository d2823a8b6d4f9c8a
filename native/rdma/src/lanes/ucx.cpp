#include "lanes/ucx.h"

#include <algorithm>
#include <stdexcept>

namespace megatronapp::rdma {

namespace {

constexpr std::uint64_t kWholeTag = ~0ull;

void check(const UcxLibrary& library, int status, const char* call) {
    if (status != UcxLibrary::kOk) {
        throw std::runtime_error(std::string(call) + " failed: " + library.text(status));
    }
}

}  // namespace

UcxWorker::UcxWorker() : library_(UcxLibrary::get()) {
    void* config = nullptr;
    check(library_, library_.config_read(nullptr, nullptr, &config), "ucp_config_read");
    UcpParams params{};
    params.field_mask = UcxLibrary::kFeatures;
    params.features = UcxLibrary::kTagAndWakeup;
    const int status = library_.init(UcxLibrary::kMajor, UcxLibrary::kMinor, &params, config, &context_);
    library_.config_release(config);
    check(library_, status, "ucp_init");
    UcpWorkerParams worker{};
    worker.field_mask = UcxLibrary::kThreadMode;
    worker.thread_mode = UcxLibrary::kSerialized;
    check(library_, library_.worker_create(context_, &worker, &worker_), "ucp_worker_create");
    check(library_, library_.event_descriptor(worker_, &descriptor_), "ucp_worker_get_efd");
}

UcxWorker::~UcxWorker() {
    library_.worker_destroy(worker_);
    for (const OperationPtr& operation : kept_) {
        operation->in_use.store(false, std::memory_order_release);
    }
    library_.cleanup(context_);
}

std::string UcxWorker::address() const {
    void* address = nullptr;
    std::size_t bytes = 0;
    check(library_, library_.worker_address(worker_, &address, &bytes), "ucp_worker_get_address");
    std::string copy(static_cast<const char*>(address), bytes);
    library_.release_address(worker_, address);
    return copy;
}

UcxLane::UcxLane(Matcher& core, UcxWorker& worker, const std::string& address)
    : core_(core), worker_(worker), library_(UcxLibrary::get()), error_(worker.new_error()) {
    UcpEndpointParams params{};
    params.field_mask = UcxLibrary::kEndpointFields;
    params.address = address.data();
    // Without this mode and a handler UCX ends the process when the peer is gone.
    params.error_mode = UcxLibrary::kPeerErrors;
    params.error_handler = [](void* status, void*, int found) { *static_cast<int*>(status) = found; };
    params.error_argument = &error_;
    check(library_, library_.endpoint_create(worker_.handle(), &params, &endpoint_), "ucp_ep_create");
}

UcxLane::~UcxLane() { close_endpoint(); }

// At once: what is under way on it ends with an error, and the peer's acknowledgement is not waited for.
void UcxLane::close_endpoint() {
    if (endpoint_ == nullptr) {
        return;
    }
    UcpRequestParams params{};
    params.attributes = UcxLibrary::kHasFlags;
    params.flags = UcxLibrary::kForce;
    void* request = library_.endpoint_close(endpoint_, &params);
    endpoint_ = nullptr;
    if (request != nullptr && !UcxLibrary::is_error(request)) {
        library_.request_free(request);
    }
}

void UcxLane::expect(const OperationPtr& receive, Message&) {
    UcpRequestParams params{};
    params.attributes = UcxLibrary::kHasCallback;
    params.received = &UcxLane::received;
    params.argument = this;
    // The id is this rank's own and never used twice: it is all that UCX has to match.
    receive->request = checked(
        library_.receive(worker_.handle(), receive->buffer, receive->what.bytes, receive->id, kWholeTag, &params));
    if (receive->request == nullptr) {
        received_.push_back(receive);
    } else {
        receiving_.emplace(receive->request, receive);
    }
}

// Called in the order in which receives end. Not for a request that was freed.
void UcxLane::received(void* request, int, const void*, void* lane) {
    auto& self = *static_cast<UcxLane*>(lane);
    const auto found = self.receiving_.find(request);
    if (found != self.receiving_.end()) {
        self.received_.push_back(found->second);
    }
}

void UcxLane::start(const OperationPtr& send, const Message& ready) {
    const UcpRequestParams params{};
    send->request = checked(library_.send(endpoint_, send->buffer, send->what.bytes, ready.receive, &params));
    if (send->request == nullptr) {
        return core_.finished(send, Status::kDone);
    }
    sending_.push_back(send);
}

void* UcxLane::checked(void* request) const {
    if (UcxLibrary::is_error(request)) {
        const int status = static_cast<int>(reinterpret_cast<std::intptr_t>(request));
        throw std::runtime_error(std::string("UCX: ") + library_.text(status));
    }
    return request;
}

bool UcxLane::progress() {
    check(library_, error_, "UCX's connection");
    const bool moved = finish_receives();
    return finish_sends() || moved;
}

bool UcxLane::finish_receives() {
    const bool moved = !received_.empty();
    while (!received_.empty()) {
        const OperationPtr receive = received_.front();
        received_.pop_front();
        finish(receive);
    }
    return moved;
}

bool UcxLane::finish_sends() {
    bool moved = false;
    for (std::size_t i = 0; i < sending_.size();) {
        const OperationPtr send = sending_[i];
        if (send->pending() && library_.request_status(send->request) == UcxLibrary::kInProgress) {
            ++i;
            continue;
        }
        sending_[i] = sending_.back();
        sending_.pop_back();
        moved = true;
        finish(send);
    }
    return moved;
}

void UcxLane::finish(const OperationPtr& operation) {
    const int status = operation->request == nullptr ? UcxLibrary::kOk : library_.request_status(operation->request);
    const bool good = status == UcxLibrary::kOk;
    core_.finished(
        operation, good ? Status::kDone : Status::kPeerLost, good ? "" : std::string("UCX: ") + library_.text(status));
}

// UCX can't promise that a buffer is not touched any more before the worker is gone, with its queue pairs.
void UcxLane::ended(Operation& operation) {
    if (operation.request == nullptr) {
        return;
    }
    if (library_.request_status(operation.request) == UcxLibrary::kInProgress) {
        if (operation.direction == Direction::kReceive) {
            library_.request_cancel(worker_.handle(), operation.request);
        }
        // What the peer took back or refused it never began.
        const Status status = operation.status.load();
        operation.in_use.store(status != Status::kCancelled && status != Status::kMismatch, std::memory_order_release);
    }
    receiving_.erase(operation.request);
    const auto is_it = [&](const OperationPtr& each) { return each.get() == &operation; };
    received_.erase(std::remove_if(received_.begin(), received_.end(), is_it), received_.end());
    library_.request_free(operation.request);
    operation.request = nullptr;
}

void UcxLane::release() {
    for (OperationPtr& send : sending_) {
        worker_.keep(std::move(send));
    }
    for (auto& [request, receive] : receiving_) {
        worker_.keep(std::move(receive));
    }
    sending_.clear();
    receiving_.clear();
    close_endpoint();
}

}  // namespace megatronapp::rdma
