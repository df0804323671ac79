package io.treadle.spark;

import java.io.IOException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
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
 */
final class DriverShuffle {
  private static final Logger LOG = LoggerFactory.getLogger(DriverShuffle.class);

  private final int shuffleId;
  private final long handle;
  private final long timeoutMillis;

  /** By the id of the run of a map. They come while others of the shuffle are committed. */
  private final Map<Long, byte[]> receipts = new ConcurrentHashMap<>();

  /** What was committed of each map; null: nothing that counts any more. */
  private final byte[][] committed;

  /** What readers read, if {@code stands}. */
  private int generation = Messages.NONE;

  private boolean stands;

  DriverShuffle(int shuffleId, long handle, int maps, long timeoutMillis) {
    this.shuffleId = shuffleId;
    this.handle = handle;
    this.timeoutMillis = timeoutMillis;
    committed = new byte[maps][];
  }

  void receipt(long mapId, byte[] receipt) {
    receipts.put(mapId, receipt);
  }

  /** The generation to read; {@link Messages#NONE}: Spark runs maps first. */
  synchronized int generation(int failed, boolean superseded) throws IOException {
    if (stands && failed == generation) {
      if (!superseded && !unregisterLost()) {
        return generation;
      }
      stands = false;
    }
    return stands ? generation : commit();
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
    stands = false;
    for (int at = 0; at < committed.length; at++) {
      committed[at] = null;
    }
    return true;
  }

  void end(long millis) throws ServiceException {
    Native.finish(handle, millis, Interrupt.NEVER);
  }

  private int commit() throws IOException {
    MapStatus[] statuses = statuses();
    if (statuses == null) {
      return Messages.NONE;
    }
    byte[][] chosen = new byte[committed.length][];
    for (int map = 0; map < chosen.length; map++) {
      if (statuses[map] == null) {
        return Messages.NONE;
      }
      chosen[map] = committed[map] != null ? committed[map] : receipts.get(statuses[map].mapId());
      if (chosen[map] == null) {
        throw new IOException(
            "no receipt of map " + map + " of shuffle " + shuffleId + ": this is a bug of Treadle");
      }
    }
    try {
      generation = Native.commit(handle, chosen, timeoutMillis, Interrupt.ofThread());
    } catch (ServiceException.RowsLost lost) {
      if (unregisterLost()) {
        return Messages.NONE;
      }
      throw lost;
    }
    System.arraycopy(chosen, 0, committed, 0, chosen.length);
    stands = true;
    return generation;
  }

  /** Has Spark run the maps again whose rows are lost: all of them at once, so that readers fail once. */
  private boolean unregisterLost() throws IOException {
    long[] lost = Native.lost(handle, timeoutMillis, Interrupt.ofThread());
    MapStatus[] statuses = statuses();
    for (long map : lost) {
      committed[(int) map] = null;
      MapStatus status = statuses == null ? null : statuses[(int) map];
      if (status != null) {
        tracker().unregisterMapOutput(shuffleId, (int) map, status.location());
      }
    }
    if (lost.length > 0) {
      LOG.warn("All copies of rows of shuffle {} are lost: {} maps run again", shuffleId, lost.length);
      stands = false;
    }
    return lost.length > 0;
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
