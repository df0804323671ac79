/* gRPC's C++ side of the figures, and the published report's raw program with its flags: asynchronous calls,
 * completion queues, ByteBuffers that nobody encodes or copies. The server drops what arrives.
 *
 *   grpc_raw --job_type=server --host=HOST|unix-abstract:NAME [--server_threads=1] [--response_size=0]
 *       prints {"address": …} and serves until standard input ends. A response size of -1 echoes the request.
 *   grpc_raw --job_type=client --target=HOST:PORT [--channels=1] [--concurrency=1] --message_size=N
 *            [--total_message=1000]
 *       sends that many messages, so many of them under way on each channel, and prints what came of it.
 *   grpc_raw --job_type=turns --target=HOST:PORT [--channels=1]
 *       the same for each line on standard input: CONCURRENCY SIZE COUNT SECONDS, of which COUNT or SECONDS
 *       is 0; with COUNT, the time is that of all messages; with SECONDS, what is under way then is waited for.
 *
 * --large_frames=1 asks for HTTP/2 frames of 16 MiB and as much in flight, on either side. Channels have sockets
 * of their own: by default gRPC shares one among all channels to an address, as the report found.
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using grpc::ByteBuffer;
using grpc::CompletionQueue;
using Clock = std::chrono::steady_clock;

static const int FRAME = (1 << 24) - 1, IN_FLIGHT = 1 << 26;
// Calls that a server's queue has asked for in advance: nobody waits for the next one to be asked for.
static const int ASKED_FOR = 1024;
static const std::chrono::seconds LONGEST(60);

static std::map<std::string, std::string> flags = {
    {"host", "127.0.0.1"}, {"target", ""},          {"job_type", ""},       {"server_threads", "1"},
    {"channels", "1"},     {"concurrency", "1"},    {"message_size", "10"}, {"response_size", "0"},
    {"large_frames", "0"}, {"total_message", "1000"},
};

static long number(const char *name) { return std::atol(flags.at(name).c_str()); }

static ByteBuffer message(size_t size)
{
    auto *bytes = static_cast<unsigned char *>(std::malloc(size ? size : 1));
    for (size_t i = 0; i < size; i++)
        bytes[i] = static_cast<unsigned char>(i);
    grpc::Slice slice(bytes, size, std::free);
    return ByteBuffer(&slice, 1);
}

/* A call that the server answers; used again for the next one. */
class Served {
  public:
    Served(grpc::AsyncGenericService &service, grpc::ServerCompletionQueue &queue, const ByteBuffer *answer)
        : service(service), queue(queue), answer(answer)
    {
        ask();
    }

    void go_on(bool ok)
    {
        if (!ok || step == FINISHED) {
            ask();  // not ok: the client is gone
        } else if (step == ASKED) {
            step = READ;
            stream->Read(&request, this);
        } else {
            step = FINISHED;
            stream->WriteAndFinish(answer ? *answer : request, grpc::WriteOptions(), grpc::Status::OK, this);
        }
    }

  private:
    void ask()
    {
        step = ASKED;
        request.Clear();
        context.emplace();
        stream.emplace(&*context);
        service.RequestCall(&*context, &*stream, &queue, &queue, this);
    }

    grpc::AsyncGenericService &service;
    grpc::ServerCompletionQueue &queue;
    const ByteBuffer *answer;
    enum { ASKED, READ, FINISHED } step = ASKED;
    std::optional<grpc::GenericServerContext> context;
    std::optional<grpc::GenericServerAsyncReaderWriter> stream;
    ByteBuffer request;
};

static void serve()
{
    grpc::AsyncGenericService service;
    grpc::ServerBuilder builder;
    int port = 0;
    bool named = flags["host"].rfind("unix", 0) == 0;
    std::string address = flags["host"] + (named ? "" : ":0");
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service);
    builder.SetMaxReceiveMessageSize(-1);
    if (number("large_frames")) {
        builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME);
        builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, IN_FLIGHT);
    }
    std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
    for (long i = 0; i < number("server_threads"); i++)
        queues.push_back(builder.AddCompletionQueue());
    auto server = builder.BuildAndStart();
    if (!server || !port) {
        std::fprintf(stderr, "grpc_raw: cannot listen on %s\n", flags["host"].c_str());
        std::exit(1);
    }
    ByteBuffer answer = message(std::max(0L, number("response_size")));
    std::vector<std::unique_ptr<Served>> calls;
    std::vector<std::thread> threads;
    for (auto &queue : queues) {
        for (int i = 0; i < ASKED_FOR; i++)
            calls.emplace_back(new Served(service, *queue, number("response_size") < 0 ? nullptr : &answer));
    }
    for (auto &queue : queues) {
        threads.emplace_back([&queue] {
            void *tag;
            bool ok;
            while (queue->Next(&tag, &ok))
                static_cast<Served *>(tag)->go_on(ok);
        });
    }
    if (!named)
        address = flags["host"] + ":" + std::to_string(port);
    std::printf("{\"address\": \"%s\"}\n", address.c_str());
    std::fflush(stdout);
    std::string line;
    while (std::getline(std::cin, line)) {
    }
    std::_Exit(0);  // what is under way does not matter to anybody any more
}

/* A message under way; used again for the next one. */
struct Sent {
    std::optional<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    ByteBuffer answer;
    grpc::Status status;
    Clock::time_point began;
    grpc::GenericStub *stub;

    void start(const ByteBuffer &request, CompletionQueue &queue)
    {
        context.emplace();
        context->set_deadline(std::chrono::system_clock::now() + LONGEST);
        began = Clock::now();
        reader = stub->PrepareUnaryCall(&*context, "/bench/raw", request, &queue);
        reader->StartCall();
        reader->Finish(&answer, &status, this);
    }
};

static double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

static void send(std::vector<std::unique_ptr<grpc::GenericStub>> &stubs, long concurrency, long size, long count,
                 double limit)
{
    CompletionQueue queue;
    ByteBuffer request = message(size);
    std::vector<Sent> sent(concurrency * stubs.size());
    std::vector<double> taken;
    taken.reserve(1 << 20);
    auto start = Clock::now();
    size_t under_way = 0;
    long started = 0;
    for (size_t i = 0; i < sent.size() && (!count || started < count); i++, started++, under_way++) {
        sent[i].stub = stubs[i % stubs.size()].get();
        sent[i].start(request, queue);
    }
    while (under_way) {
        void *tag;
        bool ok;
        queue.Next(&tag, &ok);
        auto *one = static_cast<Sent *>(tag);
        auto now = Clock::now();
        if (!one->status.ok()) {
            std::fprintf(stderr, "grpc_raw: %s\n", one->status.error_message().c_str());
            std::exit(1);
        }
        taken.push_back(seconds(now - one->began));
        if (count ? started < count : seconds(now - start) < limit) {
            started++;
            one->start(request, queue);
        } else {
            under_way--;
        }
    }
    double elapsed = seconds(Clock::now() - start);
    std::sort(taken.begin(), taken.end());
    auto rank = [&](double share) { return taken[static_cast<size_t>(std::ceil(share * taken.size())) - 1]; };
    std::printf("{\"bytes\": %.0f, \"seconds\": %.9f, \"count\": %zu, \"per_second\": %.3f, \"p50\": %.9f, "
                "\"p99\": %.9f, \"max\": %.9f}\n",
                static_cast<double>(taken.size()) * size, elapsed, taken.size(), taken.size() / elapsed, rank(0.5),
                rank(0.99), taken.back());
    std::fflush(stdout);
}

static void ask()
{
    std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
    for (long i = 0; i < number("channels"); i++) {
        grpc::ChannelArguments arguments;
        arguments.SetMaxReceiveMessageSize(-1);
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        if (number("large_frames")) {
            arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME);
            arguments.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, IN_FLIGHT);
        }
        auto channel = grpc::CreateCustomChannel(flags["target"], grpc::InsecureChannelCredentials(), arguments);
        if (!channel->WaitForConnected(std::chrono::system_clock::now() + LONGEST)) {
            std::fprintf(stderr, "grpc_raw: cannot connect to %s\n", flags["target"].c_str());
            std::exit(1);
        }
        stubs.emplace_back(new grpc::GenericStub(channel));
    }
    if (flags["job_type"] == "client") {
        send(stubs, number("concurrency"), number("message_size"), number("total_message"), 0);
        return;
    }
    long concurrency, size, count;
    double limit;
    while (std::cin >> concurrency >> size >> count >> limit)
        send(stubs, concurrency, size, count, limit);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        std::string argument = argv[i];
        size_t equals = argument.find('=');
        std::string name = argument.substr(0, 2) == "--" ? argument.substr(2, equals - 2) : "";
        if (equals == std::string::npos || !flags.count(name)) {
            std::fprintf(stderr, "grpc_raw: what is %s?\n", argv[i]);
            return 2;
        }
        flags[name] = argument.substr(equals + 1);
    }
    if (flags["job_type"] == "server")
        serve();
    else if (flags["job_type"] == "client" || flags["job_type"] == "turns")
        ask();
    else {
        std::fprintf(stderr, "grpc_raw: --job_type=server, client or turns\n");
        return 2;
    }
    return 0;
}
