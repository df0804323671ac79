package io.treadle.spark.service;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * The failure that has ended an application, as far as it has come: the last one, if no job has succeeded since. Those before
 * it were recovered from, and say nothing. It is told of events by one listener, and is not thread-safe.
 *
 * <p>A query whose job the service has failed ends its other jobs, and then itself, with errors that need not say so.
 */
public final class Failures {
  private static final Logger LOG = LoggerFactory.getLogger(Failures.class);
  private static final String QUERY = "spark.sql.execution.id";
  private static final String STOPPED = "cancelled because SparkContext was shut down";

  /** Jobs that run, and queries that the service has failed. */
  private static final int MOST = 5000;

  private final Map<Integer, String> queries = new HashMap<>();
  private final Set<String> lost = new HashSet<>();
  private boolean hasFailed;
  private boolean isOfService;
  private String error = "";

  /** A job has begun. */
  public void began(SparkListenerJobStart event) {
    Properties properties = event.properties();
    String query = properties == null ? null : properties.getProperty(QUERY);
    if (query != null && queries.size() < MOST) {
      queries.put(event.jobId(), query);
    }
  }

  /** A job has ended. */
  public void ended(SparkListenerJobEnd event) {
    String query = queries.remove(event.jobId());
    if (event.jobResult().getClass().getSimpleName().startsWith("JobSucceeded")) {
      succeeded();
      return;
    }
    String text = event.jobResult().toString();
    // What still runs when the driver ends because of a failure is no failure of its own.
    if (!hasFailed || !text.contains(STOPPED)) {
      failed(text, query);
    }
  }

  /** Something else has happened: it may be the end of a query. Spark SQL is not there in each application. */
  public void other(SparkListenerEvent event) {
    if (!event.getClass().getSimpleName().equals("SparkListenerSQLExecutionEnd")) {
      return;
    }
    try {
      // A driver that dies after a query's jobs says so here.
      Object told = event.getClass().getMethod("errorMessage").invoke(event);
      if (!(told instanceof Option) || !((Option<?>) told).isDefined()) {
        return;
      }
      String message = String.valueOf(((Option<?>) told).get());
      if (message.isEmpty()) {
        succeeded();
      } else {
        failed(message, String.valueOf(event.getClass().getMethod("executionId").invoke(event)));
      }
    } catch (ReflectiveOperationException older) {
      LOG.debug("This Spark does not say how queries end", older);
    }
  }

  private void succeeded() {
    hasFailed = false;
    isOfService = false;
    error = "";
  }

  private void failed(String text, String query) {
    hasFailed = true;
    error = text;
    isOfService = ServiceException.isIn(text) || (query != null && lost.contains(query));
    if (isOfService && query != null && lost.size() < MOST) {
      lost.add(query);
    }
  }

  /** Whether the application fails if nothing more succeeds. */
  public boolean hasFailed() {
    return hasFailed;
  }

  /** Whether that is because of the service. */
  public boolean isOfService() {
    return isOfService;
  }

  /** The text of the failure; empty: there is none. */
  public String error() {
    return error;
  }
}
