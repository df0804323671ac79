package io.treadle.spark;

import java.util.HashMap;
import java.util.Map;

/**
 * The connection of an executor to the master of its application, which is in the driver, and the shuffles that it uses.
 * In the driver's process it is that of the driver.
 */
final class Connection {
  private final Settings settings;
  private final String name;

  /** The driver's own; null: this process connects by itself. */
  private final Driver driver;

  private long service;
  private final Map<Long, Long> shuffles = new HashMap<>();

  /** The generations that are read, by numbers of shuffles in the service. */
  private final Map<Long, Integer> generations = new HashMap<>();

  Connection(Settings settings, String name, Driver driver) {
    this.settings = settings;
    this.name = name;
    this.driver = driver;
  }

  /** The native shuffle of a handle. A connection that has ended is made anew. */
  synchronized long shuffle(TreadleShuffleHandle<?, ?, ?> handle, Interrupt interrupt)
      throws ServiceException {
    connect(handle, interrupt);
    Long known = shuffles.get(handle.number);
    if (known == null) {
      known = Native.attach(service, handle.number, settings.timeoutMillis(), interrupt);
      shuffles.put(handle.number, known);
    }
    return known;
  }

  private void connect(TreadleShuffleHandle<?, ?, ?> handle, Interrupt interrupt)
      throws ServiceException {
    if (driver != null) {
      service = driver.service();
      return;
    }
    if (service != 0 && Native.over(service)) {
      close();
    }
    if (service == 0) {
      service =
          Native.connect(
              handle.master,
              false,
              name,
              handle.application,
              settings.connection(),
              settings.insecure(),
              settings.timeoutMillis(),
              interrupt);
    }
  }

  /** What was read last; {@link Messages#NONE}: nothing. */
  synchronized int generation(TreadleShuffleHandle<?, ?, ?> handle) {
    return generations.getOrDefault(handle.number, Messages.NONE);
  }

  synchronized void generation(TreadleShuffleHandle<?, ?, ?> handle, int generation) {
    generations.put(handle.number, generation);
  }

  synchronized void unregister(long number) {
    generations.remove(number);
    Long shuffle = shuffles.remove(number);
    if (shuffle != null) {
      Native.detach(shuffle);
    }
  }

  synchronized void close() {
    shuffles.values().forEach(Native::detach);
    shuffles.clear();
    if (service != 0 && driver == null) {
      Native.close(service);
    }
    service = 0;
  }
}
