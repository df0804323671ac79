package io.treadle.spark.service;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.IOException;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import org.apache.spark.rpc.RpcCallContext;
import org.apache.spark.rpc.RpcEndpoint;
import org.apache.spark.rpc.RpcEndpointRef;
import org.apache.spark.rpc.RpcEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.PartialFunction;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/** The driver's part: the application's master, which runs natively here, and the answers to executors. */
final class Driver implements RpcEndpoint {
  static final String NAME = "treadle-shuffle";

  private static final Logger LOG = LoggerFactory.getLogger(Driver.class);

  /** No message keeps one of these threads while servers answer. */
  private static final int LISTENING = 2;

  /** How long the end of a shuffle may take. What is late ends with the application. */
  private static final long END_MILLIS = 5_000;

  private final Settings settings;
  private final long service;
  private final String master;
  private final long application;
  private final ConcurrentHashMap<Integer, DriverShuffle> shuffles = new ConcurrentHashMap<>();

  /** At most one for each shuffle: servers compare while it waits. */
  private final ExecutorService committing =
      Executors.newCachedThreadPool(Futures.daemons("treadle-commit"));

  private final ExecutorService listening =
      Executors.newFixedThreadPool(LISTENING, Futures.daemons("treadle-driver"));

  /** null: executors cannot ask yet. */
  private RpcEnv rpcEnv;

  private RpcEndpointRef own;

  private Driver(Settings settings, long service) throws ServiceException {
    this.settings = settings;
    this.service = service;
    master = Native.master(service);
    application = Native.application(service);
  }

  /**
   * Starts the master of an application, which finds the servers through the registry.
   *
   * @throws IOException if there is no service, or it has no server
   */
  static Driver connect(Settings settings, String name) throws IOException {
    long begin = System.nanoTime();
    long most = settings.connectMillis();
    long service =
        Native.connect(
            settings.servers(),
            true,
            name,
            0,
            settings.connection(),
            settings.insecure(),
            most,
            Interrupt.ofThread());
    boolean started = false;
    try {
      while (Native.servers(service, most, Interrupt.ofThread()) == 0) {
        if (System.nanoTime() - begin > most * 1_000_000) {
          throw new IOException(
              settings.servers() + " has no shuffle server: start `treadle shuffle-server`");
        }
        Thread.sleep(50);
      }
      Driver driver = new Driver(settings, service);
      started = true;
      LOG.info("The master of this application's shuffles listens at {}", driver.master);
      return driver;
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while waiting for shuffle servers", error);
    } finally {
      if (!started) {
        Native.close(service);
      }
    }
  }

  /** Lets executors ask. A second time has no effect, and returns false. */
  synchronized boolean listen(RpcEnv env) {
    if (own != null) {
      return false;
    }
    rpcEnv = env;
    own = env.setupEndpoint(NAME, this);
    return true;
  }

  String master() {
    return master;
  }

  long application() {
    return application;
  }

  long service() {
    return service;
  }

  /** Registers a shuffle. Returns its number in the service. */
  long register(int shuffleId, String name, int maps, int partitions, String codec)
      throws ServiceException {
    int copies = settings.copies();
    long handle =
        Native.register(
            service,
            name,
            maps,
            partitions,
            copies,
            settings.expectedBytes(),
            codec,
            settings.connectMillis(),
            Interrupt.ofThread());
    if (Native.copies(handle) < copies) {
      LOG.warn("Shuffle {} has one copy of each row: all shuffle servers are in one failure domain", shuffleId);
    }
    shuffles.put(shuffleId, new DriverShuffle(shuffleId, handle, maps, settings.timeoutMillis()));
    return Native.number(handle);
  }

  /** Whether a shuffle is registered, and has not ended. */
  boolean has(int shuffleId) {
    return shuffles.containsKey(shuffleId);
  }

  /** A stage begins that writes a shuffle. {@code false}: the shuffle is not at the service. */
  boolean writes(int shuffleId, String stage) {
    DriverShuffle shuffle = shuffles.get(shuffleId);
    if (shuffle == null) {
      return false;
    }
    try {
      shuffle.writes(service, stage);
    } catch (ServiceException | IllegalStateException error) {
      LOG.debug("The record of shuffle {} does not say its stages", shuffleId, error);
    }
    return true;
  }

  /** See {@link Native#records}. */
  String records(long millis) throws ServiceException {
    return Native.records(service, millis, Interrupt.ofThread());
  }

  /** How many servers that had rows of the application were lost, as the records of its shuffles say. */
  int lostServers(long millis) {
    Set<String> lost = new HashSet<>();
    try {
      for (JsonNode record : new ObjectMapper().readTree(records(millis))) {
        for (JsonNode trouble : record.path("troubles")) {
          // "server NAME was lost", and why.
          String what = trouble.path("what").asText();
          int end = what.indexOf(" was lost");
          if (end > 0) {
            lost.add(what.substring(0, end));
          }
        }
      }
    } catch (IOException | RuntimeException error) {
      LOG.debug("How many servers were lost is not known", error);
    }
    return lost.size();
  }

  void unregister(int shuffleId) {
    DriverShuffle shuffle = shuffles.remove(shuffleId);
    if (shuffle != null) {
      try {
        shuffle.end(END_MILLIS);
      } catch (ServiceException | IllegalStateException error) {
        LOG.warn("Ending shuffle {}: {}", shuffleId, error.getMessage());
      }
    }
  }

  synchronized void close() {
    if (own != null) {
      rpcEnv.stop(own);
    }
    committing.shutdownNow();
    listening.shutdownNow();
    shuffles.values().forEach(DriverShuffle::detach);
    shuffles.clear();
    Native.close(service);
  }

  /** Answers a message of {@link Messages}. It does not wait for the service. */
  CompletableFuture<byte[]> answer(byte[] message) throws IOException {
    DataInputStream in = Messages.in(message);
    byte kind = in.readByte();
    int shuffleId = in.readInt();
    DriverShuffle shuffle = shuffles.get(shuffleId);
    if (shuffle == null && kind == Messages.GENERATION) {
      // If it is used again, its maps are to run again.
      return CompletableFuture.completedFuture(Messages.number(Messages.NONE));
    }
    if (shuffle == null) {
      throw new IOException("shuffle " + shuffleId + " has ended");
    }
    switch (kind) {
      case Messages.RECEIPT:
        int map = in.readInt();
        long mapId = in.readLong();
        int length = in.readInt();
        if (length != in.available()) {
          throw new IOException("a receipt of " + length + " bytes in " + in.available());
        }
        byte[] receipt = new byte[length];
        in.readFully(receipt);
        shuffle.receipt(map, mapId, receipt);
        return CompletableFuture.completedFuture(new byte[0]);
      case Messages.GENERATION:
        return shuffle
            .generation(in.readInt(), in.readBoolean(), committing)
            .thenApply(generation -> Messages.number((int) generation));
      case Messages.REPLACES:
        boolean replaces = shuffle.replaces(in.readInt());
        return CompletableFuture.completedFuture(Messages.number(replaces ? 1 : 0));
      default:
        throw new IOException("message " + kind + " is of another version of Treadle");
    }
  }

  @Override
  public RpcEnv rpcEnv() {
    return rpcEnv;
  }

  @Override
  public PartialFunction<Object, BoxedUnit> receiveAndReply(RpcCallContext context) {
    return new Answers(context);
  }

  /** Hands messages to other threads: Spark's own dispatch those of all endpoints. */
  private final class Answers extends AbstractPartialFunction<Object, BoxedUnit> {
    private final RpcCallContext context;

    Answers(RpcCallContext context) {
      this.context = context;
    }

    @Override
    public boolean isDefinedAt(Object message) {
      return message instanceof byte[] && ((byte[]) message).length > 0;
    }

    @Override
    public BoxedUnit apply(Object message) {
      byte[] bytes = (byte[]) message;
      try {
        listening.execute(() -> answerTo(bytes));
      } catch (RejectedExecutionException error) {
        fail(error);
      }
      return BoxedUnit.UNIT;
    }

    private void answerTo(byte[] message) {
      try {
        answer(message)
            .whenComplete(
                (answer, error) -> {
                  if (error == null) {
                    context.reply(answer);
                  } else {
                    fail(Futures.cause(error));
                  }
                });
      } catch (Throwable error) {
        // An executor that got no answer would wait for it.
        fail(error);
      }
    }

    private void fail(Throwable error) {
      // Executors may not have the class of the error in the loader that reads it.
      boolean isOwn = error instanceof IOException;
      context.sendFailure(new IOException(isOwn ? error.getMessage() : error.toString()));
    }
  }
}
