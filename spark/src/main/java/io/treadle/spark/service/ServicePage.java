package io.treadle.spark.service;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.treadle.spark.Reliability;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import org.apache.spark.SparkConf;

/** What the tab shows: the application's shuffles, the latest first, and why some are not at the service. */
final class ServicePage {
  private static final long MILLIS = 5_000;

  private final SparkConf conf;

  /** The latest last. */
  private final Deque<String> reasons = new ArrayDeque<>();

  private Driver driver;

  ServicePage(SparkConf conf) {
    this.conf = conf;
  }

  /** The application has a master. */
  synchronized void began(Driver driver) {
    this.driver = driver;
  }

  /** A shuffle is in files of executors. */
  synchronized void fellBack(ShuffleInFiles event) {
    if (reasons.size() == ShuffleTable.MOST_REASONS) {
      reasons.removeFirst();
    }
    reasons.addLast(event.text());
  }

  private synchronized List<String> reasons() {
    return new ArrayList<>(reasons);
  }

  private synchronized Driver driver() {
    return driver;
  }

  /** In HTML. What users or others have named is escaped. */
  String html() {
    StringBuilder html = new StringBuilder();
    int fallbacks = Reliability.fallbacks();
    ShuffleTable.inFiles(html, fallbacks, fallbacks == 0 ? Collections.emptyList() : reasons());
    link(html);
    Driver driver = driver();
    if (driver == null) {
      return html.append("<p>No shuffle is at the service yet.</p>").toString();
    }
    html.append("<p>The master of this application's shuffles is <code>")
        .append(ShuffleTable.escaped(driver.master()))
        .append("</code>: <code>treadle shuffle list --service ")
        .append(ShuffleTable.escaped(driver.master()))
        .append("</code></p>");
    try {
      table(html, new ObjectMapper().readTree(driver.records(MILLIS)));
    } catch (IOException | RuntimeException error) {
      html.append("<p>The master does not answer: ").append(ShuffleTable.escaped(error.toString())).append("</p>");
    }
    return html.toString();
  }

  /** To the job's page at the coordinator that has decided about it. */
  private void link(StringBuilder html) {
    String coordinator = conf.get("spark.treadle.coordinator", "");
    String decision = conf.get("spark.treadle.decision", "");
    if (decision.isEmpty() || !coordinator.matches("https?://.*")) {
      return;
    }
    try {
      String job = URLEncoder.encode(decision, StandardCharsets.UTF_8.name()).replace("+", "%20");
      html.append("<p><a href=\"")
          .append(ShuffleTable.escaped(coordinator.replaceAll("/+$", "") + "/jobs/" + job))
          .append("\" rel=\"noreferrer\">This application at the coordinator</a></p>");
    } catch (IOException never) {
      throw new IllegalStateException(never);
    }
  }

  private static void table(StringBuilder html, JsonNode records) {
    List<JsonNode> latest = new ArrayList<>();
    for (int at = records.size() - 1; at >= 0 && latest.size() < ShuffleTable.MOST_ROWS; at--) {
      latest.add(records.get(at));
    }
    ShuffleTable.table(html, latest, records.size());
  }
}
