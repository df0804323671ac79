package io.treadle.spark.service;

import java.io.IOException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/** What several tasks wait for, and another thread does. It has a timeout of its own. */
final class Futures {
  /** How often it is looked whether a task was interrupted. */
  private static final long LOOK_MILLIS = 25;

  private Futures() {}

  /** The result. Who is interrupted waits no longer, and what the others wait for goes on. */
  static <T> T await(CompletableFuture<T> future, Interrupt interrupt, String what)
      throws IOException {
    try {
      while (!future.isDone()) {
        if (interrupt.interrupted()) {
          throw new ServiceException.Interrupted(what + ": it was interrupted");
        }
        try {
          return future.get(LOOK_MILLIS, TimeUnit.MILLISECONDS);
        } catch (TimeoutException later) {
          continue;
        }
      }
      return future.get();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new ServiceException.Interrupted(what + ": it was interrupted");
    } catch (ExecutionException error) {
      Throwable cause = cause(error);
      if (cause instanceof IOException) {
        throw (IOException) cause;
      }
      throw new IOException(what + ": " + cause, cause);
    }
  }

  /** What has failed, without the exceptions that futures wrap it in. */
  static Throwable cause(Throwable error) {
    Throwable cause = error;
    while ((cause instanceof ExecutionException || cause instanceof CompletionException)
        && cause.getCause() != null) {
      cause = cause.getCause();
    }
    return cause;
  }

  /** Threads that no JVM waits for at its end. */
  static ThreadFactory daemons(String name) {
    AtomicInteger number = new AtomicInteger();
    return task -> {
      Thread thread = new Thread(task, name + "-" + number.incrementAndGet());
      thread.setDaemon(true);
      return thread;
    };
  }
}
