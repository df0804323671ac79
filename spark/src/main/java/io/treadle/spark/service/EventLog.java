package io.treadle.spark.service;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.EventLoggingListener;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Has Spark's log of events say what the tab shows, for the history server: after stages, and at the end of the application.
 * Nothing here fails an application.
 */
final class EventLog extends SparkListener {
  private static final Logger LOG = LoggerFactory.getLogger(EventLog.class);

  /** How long after a stage the log has what it changed. More stages meanwhile are told together. */
  private static final long PAUSE_MILLIS = 500;

  private static final long MILLIS = 2_000;

  private final SparkContext context;
  private final EventLoggingListener log;
  private final ObjectMapper mapper = new ObjectMapper();
  private final AtomicBoolean isAsked = new AtomicBoolean();
  private final ScheduledExecutorService thread =
      Executors.newSingleThreadScheduledExecutor(Futures.daemons("treadle-events"));

  /** What was told last of each shuffle that the service has a record of. */
  private Map<Long, String> told = new HashMap<>();

  private long last;
  private volatile Driver driver;

  private EventLog(SparkContext context, EventLoggingListener log) {
    this.context = context;
    this.log = log;
  }

  /** That of an application; null: it writes no events. */
  static EventLog of(SparkContext context) {
    if (context.eventLogger().isEmpty()) {
      return null;
    }
    EventLog own = new EventLog(context, context.eventLogger().get());
    // On the thread that writes the log: at the end of the application, nothing can be posted any more.
    context.listenerBus().addToEventLogQueue(own);
    return own;
  }

  /** The application has a master. */
  void began(Driver driver) {
    this.driver = driver;
  }

  /** A shuffle is in files of executors. */
  void fellBack(ShuffleInFiles event) {
    context.listenerBus().post(event);
  }

  @Override
  public void onStageCompleted(SparkListenerStageCompleted event) {
    if (driver == null || !isAsked.compareAndSet(false, true)) {
      return;
    }
    try {
      thread.schedule(
          () -> {
            isAsked.set(false);
            tell(context.listenerBus()::post);
          },
          PAUSE_MILLIS,
          TimeUnit.MILLISECONDS);
    } catch (RejectedExecutionException over) {
      LOG.debug("A stage ended after its application");
    }
  }

  @Override
  public void onApplicationEnd(SparkListenerApplicationEnd event) {
    thread.shutdownNow();
    if (driver != null) {
      tell(log::onOtherEvent);
    }
  }

  /** Tells what has changed since. */
  private synchronized void tell(Consumer<SparkListenerEvent> log) {
    try {
      Map<Long, String> now = new HashMap<>();
      for (JsonNode record : mapper.readTree(driver.records(MILLIS))) {
        long number = record.path("number").asLong();
        String text = ShuffleTable.shown((ObjectNode) record).toString();
        now.put(number, text);
        if (!text.equals(told.get(number))) {
          log.accept(new ShuffleRecorded(number, ++last, text));
        }
      }
      told = now;
    } catch (IOException | RuntimeException error) {
      LOG.warn("The log of events does not have the latest of the shuffles: {}", error.toString());
    }
  }
}
