package io.treadle.spark.service;

import java.io.IOException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.ShuffleStatus;
import org.apache.spark.SparkEnv;
import org.apache.spark.scheduler.MapStatus;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * A shuffle in the driver: the receipts of its maps, and which of them were committed.
 *
 * <p>Spark's tracker says which run of a map counts, until that is committed. What is committed stays until its rows are
 * lost, or Spark runs the map again by itself: a late run may still replace the entry of the tracker, and its rows are not
 * at the service.
 *
 * <p>The service is asked without the monitor, by one thread at a time.
 */
final class DriverShuffle {
  private static final Logger LOG = LoggerFactory.getLogger(DriverShuffle.class);

  /** That a record names. More are an application whose stages fail again and again. */
  private static final int MOST_STAGES = 20;

  private final int shuffleId;
  private final long handle;
  private final long timeoutMillis;

  /** Of one thread: that of Spark's listeners. */
  private final Set<String> stages = new LinkedHashSet<>();

  /** By the id of the run of a map. They come while others of the shuffle are committed. */
  private final Map<Long, byte[]> receipts = new HashMap<>();

  /** The run of each map that was committed; null: none that counts any more. */
  private final Long[] committed;

  /** How often runs that were committed stopped to count. A commit that began before tells nothing. */
  private long changes;

  /** What readers read, if {@code stands}. */
  private int generation = Messages.NONE;

  private boolean stands;

  /** What the service is being asked; null: nothing. */
  private CompletableFuture<Integer> asked;

  DriverShuffle(int shuffleId, long handle, int maps, long timeoutMillis) {
    this.shuffleId = shuffleId;
    this.handle = handle;
    this.timeoutMillis = timeoutMillis;
    committed = new Long[maps];
  }

  /** A stage begins that writes it. The service's record says so. */
  void writes(long service, String stage) throws ServiceException {
    if (stages.size() < MOST_STAGES && stages.add(stage)) {
      Native.writtenBy(service, Native.number(handle), String.join(", ", stages));
    }
  }

  synchronized void receipt(int map, long mapId, byte[] receipt) throws IOException {
    if (map < 0 || map >= committed.length) {
      throw new IOException("shuffle " + shuffleId + " has no map " + map);
    }
    receipts.put(mapId, receipt);
    MapStatus[] statuses = statuses();
    if (committed[map] != null && statuses != null && statuses[map] == null) {
      // Spark has dropped what was committed of it, and this run counts.
      committed[map] = null;
      changed();
    }
  }

  private void changed() {
    changes++;
    stands = false;
  }

  /**
   * The generation to read; {@link Messages#NONE}: Spark runs maps first. Who asks while another question is open gets its
   * answer.
   */
  synchronized CompletableFuture<Integer> generation(
      int failed, boolean superseded, Executor threads) throws IOException {
    if (asked != null) {
      return asked;
    }
    if (stands && failed != generation) {
      return CompletableFuture.completedFuture(generation);
    }
    boolean mayStand = stands && !superseded;
    CompletableFuture<Integer> answer = new CompletableFuture<>();
    try {
      threads.execute(() -> answer(answer, mayStand));
    } catch (RejectedExecutionException error) {
      throw new IOException("the application ends", error);
    }
    asked = answer;
    return answer;
  }

  private void answer(CompletableFuture<Integer> answer, boolean mayStand) {
    int found = Messages.NONE;
    Throwable failed = null;
    try {
      found = mayStand && !unregisterLost() ? standing() : commit();
    } catch (Throwable error) {
      failed = error;
    }
    synchronized (this) {
      asked = null;
    }
    if (failed == null) {
      answer.complete(found);
    } else {
      answer.completeExceptionally(failed);
    }
  }

  private synchronized int standing() {
    return generation;
  }

  /** Whether Spark runs a map again that it has no rows of. Then rows that were committed do not count any more. */
  synchronized boolean replaces(int map) throws IOException {
    MapStatus[] statuses = statuses();
    if (statuses != null && statuses[map] != null) {
      return false;
    }
    LOG.warn(
        "Spark runs map {} of shuffle {} again, and its rows are others than before: all of its maps count anew",
        map,
        shuffleId);
    changed();
    for (int at = 0; at < committed.length; at++) {
      committed[at] = null;
    }
    return true;
  }

  void end(long millis) throws ServiceException {
    Native.finish(handle, millis, Interrupt.NEVER);
  }

  /** Lets it go, with all that is open here. The end of the application ends it. */
  void detach() {
    Native.detach(handle);
  }

  private int commit() throws IOException {
    long before;
    Long[] runs;
    byte[][] chosen;
    Set<Long> known;
    synchronized (this) {
      stands = false;
      runs = runs();
      if (runs == null) {
        return Messages.NONE;
      }
      chosen = new byte[runs.length][];
      for (int map = 0; map < chosen.length; map++) {
        chosen[map] = receipts.get(runs[map]);
      }
      before = changes;
      known = new HashSet<>(receipts.keySet());
    }
    int now;
    try {
      now = Native.commit(handle, chosen, timeoutMillis, Interrupt.ofThread());
    } catch (ServiceException.RowsLost lost) {
      if (unregisterLost()) {
        return Messages.NONE;
      }
      throw lost;
    }
    synchronized (this) {
      generation = now;
      if (changes == before) {
        System.arraycopy(runs, 0, committed, 0, runs.length);
        stands = true;
        forget(known);
      }
    }
    return now;
  }

  /** The run of each map that counts; null: Spark runs maps first. */
  private Long[] runs() {
    MapStatus[] statuses = statuses();
    if (statuses == null) {
      return null;
    }
    Long[] runs = new Long[committed.length];
    boolean isWhole = true;
    for (int map = 0; map < runs.length; map++) {
      if (statuses[map] == null) {
        isWhole = false;
        continue;
      }
      runs[map] = committed[map] != null ? committed[map] : Long.valueOf(statuses[map].mapId());
      if (!receipts.containsKey(runs[map])) {
        // It had lost against another run, which does not count any more either.
        LOG.warn("There is no receipt of map {} of shuffle {}: it runs again", map, shuffleId);
        tracker().unregisterMapOutput(shuffleId, map, statuses[map].location());
        isWhole = false;
      }
    }
    return isWhole ? runs : null;
  }

  /** Drops receipts of runs that have lost: of those, all but what Spark may still name. */
  private void forget(Set<Long> known) {
    for (Long run : committed) {
      known.remove(run);
    }
    MapStatus[] statuses = statuses();
    for (int map = 0; statuses != null && map < committed.length; map++) {
      if (statuses[map] != null) {
        known.remove(statuses[map].mapId());
      }
    }
    receipts.keySet().removeAll(known);
  }

  /** Has Spark run the maps again whose rows are lost: all of them at once, so that readers fail once. */
  private boolean unregisterLost() throws IOException {
    long[] lost = Native.lost(handle, timeoutMillis, Interrupt.ofThread());
    if (lost.length == 0) {
      return false;
    }
    LOG.warn("All copies of rows of shuffle {} are lost: {} maps run again", shuffleId, lost.length);
    synchronized (this) {
      changed();
      MapStatus[] statuses = statuses();
      for (long map : lost) {
        committed[(int) map] = null;
        MapStatus status = statuses == null ? null : statuses[(int) map];
        if (status != null) {
          tracker().unregisterMapOutput(shuffleId, (int) map, status.location());
        }
      }
    }
    return true;
  }

  /** Of each map; null: the shuffle is not registered any more. */
  private MapStatus[] statuses() {
    Option<ShuffleStatus> status = tracker().shuffleStatuses().get(shuffleId);
    return status.isEmpty() ? null : status.get().mapStatuses();
  }

  private static MapOutputTrackerMaster tracker() {
    return (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
  }
}
