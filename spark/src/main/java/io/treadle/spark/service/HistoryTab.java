package io.treadle.spark.service;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.status.AppHistoryServerPlugin;
import org.apache.spark.status.ElementTrackingStore;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.util.kvstore.KVStore;
import org.apache.spark.util.kvstore.KVStoreIterator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.List$;

/** The tab in Spark's history server, which loads this by its name in {@code META-INF/services}. */
public final class HistoryTab implements AppHistoryServerPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(HistoryTab.class);

  /** Shuffles that are kept of an application, the latest ones, and how many more there are before some go. */
  private static final long MOST_KEPT = 1_000;

  private static final int MOST_MORE = 100;

  /** Scala 2.13 looks for this class of sequences, and 2.12 for one that it extends. */
  @Override
  public scala.collection.immutable.Seq<SparkListener> createListeners(
      SparkConf conf, ElementTrackingStore store) {
    return List$.MODULE$.<SparkListener>empty().$colon$colon(new Replayed(store));
  }

  @Override
  public void setupUI(SparkUI ui) {
    KVStore store = ui.store().store();
    try {
      if (store.count(ShuffleRecorded.class) + store.count(ShuffleInFiles.class) > 0) {
        ServiceTab.attach(ui, () -> html(store));
      }
    } catch (Exception | LinkageError error) {
      // The other tabs are there without this one.
      LOG.warn("The application has no tab of Treadle: {}", error.toString());
    }
  }

  private static String html(KVStore store) {
    StringBuilder html = new StringBuilder("<p>As the log of this application has it last.</p>");
    ObjectMapper mapper = new ObjectMapper();
    try {
      List<String> reasons = new ArrayList<>();
      for (ShuffleInFiles one : latest(store, ShuffleInFiles.class, ShuffleTable.MOST_REASONS)) {
        reasons.add(one.text());
      }
      ShuffleTable.inFiles(html, store.count(ShuffleInFiles.class), reasons);
      List<JsonNode> records = new ArrayList<>();
      for (ShuffleRecorded one : latest(store, ShuffleRecorded.class, ShuffleTable.MOST_ROWS)) {
        records.add(mapper.readTree(one.record()));
      }
      ShuffleTable.table(html, records, store.count(ShuffleRecorded.class));
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
    return html.toString();
  }

  private static <T> List<T> latest(KVStore store, Class<T> kind, int most) throws Exception {
    try (KVStoreIterator<T> found = store.view(kind).reverse().max(most).closeableIterator()) {
      return found.next(most);
    }
  }

  /** Keeps what the log says, as it is read. */
  private static final class Replayed extends SparkListener {
    private final ElementTrackingStore store;

    Replayed(ElementTrackingStore store) {
      this.store = store;
    }

    @Override
    public void onOtherEvent(SparkListenerEvent event) {
      if (event instanceof ShuffleRecorded) {
        ShuffleRecorded recorded = (ShuffleRecorded) event;
        if (recorded.at() > known(recorded.number())) {
          keep(recorded);
        }
      } else if (event instanceof ShuffleInFiles) {
        keep(event);
      }
    }

    private long known(long number) {
      try {
        return store.read(ShuffleRecorded.class, number).at();
      } catch (NoSuchElementException none) {
        return 0;
      }
    }

    private void keep(Object event) {
      store.write(event);
      if (store.count(event.getClass()) <= MOST_KEPT + MOST_MORE) {
        return;
      }
      List<Object> oldest = new ArrayList<>();
      try (KVStoreIterator<?> found = store.view(event.getClass()).max(MOST_MORE).closeableIterator()) {
        found.forEachRemaining(oldest::add);
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
      for (Object one : oldest) {
        store.delete(one.getClass(), key(one));
      }
    }

    private static Object key(Object event) {
      return event instanceof ShuffleRecorded
          ? (Object) ((ShuffleRecorded) event).number()
          : (Object) ((ShuffleInFiles) event).shuffle();
    }
  }
}
