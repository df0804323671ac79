package io.treadle.spark.service;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * The connection of an executor to the master of its application, which is in the driver, and the shuffles that it uses.
 * In the driver's process it is that of the driver.
 *
 * <p>Other threads connect and attach, since a task that is killed must not keep those that wait with it.
 */
final class Connection {
  private final Settings settings;
  private final String name;

  /** The driver's own; null: this process connects by itself. */
  private final Driver driver;

  /** At most one for each shuffle that is attached. */
  private final ExecutorService threads =
      Executors.newCachedThreadPool(Futures.daemons("treadle-connection"));

  /** null: none. */
  private CompletableFuture<Long> service;

  private final Map<Long, CompletableFuture<Long>> shuffles = new HashMap<>();

  /** The generations that are read, by numbers of shuffles in the service. */
  private final Map<Long, Integer> generations = new HashMap<>();

  Connection(Settings settings, String name, Driver driver) {
    this.settings = settings;
    this.name = name;
    this.driver = driver;
  }

  /** The native shuffle of a handle. A connection that has ended is made anew. */
  long shuffle(ServiceShuffle<?, ?, ?> handle, Interrupt interrupt) throws IOException {
    return Futures.await(attached(handle), interrupt, "connecting to the shuffle service");
  }

  private synchronized CompletableFuture<Long> attached(ServiceShuffle<?, ?, ?> handle)
      throws ServiceException {
    CompletableFuture<Long> service = connected(handle);
    CompletableFuture<Long> known = shuffles.get(handle.number);
    if (known == null || known.isCompletedExceptionally()) {
      known = service.thenApplyAsync(open -> attach(open, handle), threads);
      shuffles.put(handle.number, known);
    }
    return known;
  }

  private CompletableFuture<Long> connected(ServiceShuffle<?, ?, ?> handle)
      throws ServiceException {
    if (service != null && isOver()) {
      drop();
    }
    if (service == null) {
      service =
          driver != null
              ? CompletableFuture.completedFuture(driver.service())
              : CompletableFuture.supplyAsync(() -> connect(handle), threads);
    }
    return service;
  }

  private boolean isOver() throws ServiceException {
    if (service.isCompletedExceptionally()) {
      return true;
    }
    return driver == null && service.isDone() && Native.over(service.join());
  }

  private long connect(ServiceShuffle<?, ?, ?> handle) {
    try {
      return Native.connect(
          handle.master,
          false,
          name,
          handle.application,
          settings.connection(),
          settings.insecure(),
          settings.timeoutMillis(),
          Interrupt.ofThread());
    } catch (ServiceException error) {
      throw new CompletionException(error);
    }
  }

  private long attach(long service, ServiceShuffle<?, ?, ?> handle) {
    try {
      return Native.attach(
          service, handle.number, settings.timeoutMillis(), Interrupt.ofThread());
    } catch (ServiceException error) {
      throw new CompletionException(error);
    }
  }

  /** What was read last; {@link Messages#NONE}: nothing. */
  synchronized int generation(ServiceShuffle<?, ?, ?> handle) {
    return generations.getOrDefault(handle.number, Messages.NONE);
  }

  synchronized void generation(ServiceShuffle<?, ?, ?> handle, int generation) {
    generations.put(handle.number, generation);
  }

  synchronized void unregister(long number) {
    generations.remove(number);
    CompletableFuture<Long> shuffle = shuffles.remove(number);
    if (shuffle != null) {
      shuffle.thenAccept(Native::detach);
    }
  }

  synchronized void close() {
    drop();
    threads.shutdownNow();
  }

  /** Lets all go, also what is not open yet. */
  private void drop() {
    shuffles.values().forEach(shuffle -> shuffle.thenAccept(Native::detach));
    shuffles.clear();
    if (service != null && driver == null) {
      service.thenAccept(Native::close);
    }
    service = null;
  }
}
