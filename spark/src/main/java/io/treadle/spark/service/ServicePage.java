package io.treadle.spark.service;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.treadle.spark.Reliability;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Locale;
import org.apache.spark.SparkConf;

/** What the tab shows: the application's shuffles, the latest first, and why some are not at the service. */
final class ServicePage {
  /** Shuffles, reasons, and troubles of a shuffle that are shown. */
  private static final int MOST_ROWS = 500;

  private static final int MOST_REASONS = 20;
  private static final int MOST_TROUBLES = 5;
  private static final long MILLIS = 5_000;

  private static final String[] HEADINGS = {
    "Shuffle", "Stages", "State", "Maps", "Partitions", "Rows", "Size", "Skew", "Copies", "Servers",
    "Ran again", "Troubles",
  };

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
  synchronized void fellBack(int shuffleId, String why) {
    if (reasons.size() == MOST_REASONS) {
      reasons.removeFirst();
    }
    reasons.addLast("Shuffle " + shuffleId + ": " + why);
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
    html.append("<p>").append(fallbacks).append(" shuffles in files of executors, as without Treadle.</p>");
    if (fallbacks > 0) {
      html.append("<ul>");
      for (String reason : reasons()) {
        html.append("<li>").append(escaped(reason)).append("</li>");
      }
      html.append("</ul>");
    }
    link(html);
    Driver driver = driver();
    if (driver == null) {
      return html.append("<p>No shuffle is at the service yet.</p>").toString();
    }
    html.append("<p>The master of this application's shuffles is <code>")
        .append(escaped(driver.master()))
        .append("</code>: <code>treadle shuffle list --service ")
        .append(escaped(driver.master()))
        .append("</code></p>");
    try {
      table(html, new ObjectMapper().readTree(driver.records(MILLIS)));
    } catch (IOException | RuntimeException error) {
      html.append("<p>The master does not answer: ").append(escaped(error.toString())).append("</p>");
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
          .append(escaped(coordinator.replaceAll("/+$", "") + "/jobs/" + job))
          .append("\" rel=\"noreferrer\">This application at the coordinator</a></p>");
    } catch (IOException never) {
      throw new IllegalStateException(never);
    }
  }

  private static void table(StringBuilder html, JsonNode records) {
    html.append("<table class=\"table table-bordered table-sm table-striped\" id=\"treadle-shuffles\"><thead><tr>");
    for (String heading : HEADINGS) {
      html.append("<th>").append(heading).append("</th>");
    }
    html.append("</tr></thead><tbody>");
    int last = records.size() - 1;
    for (int at = last; at >= 0 && at > last - MOST_ROWS; at--) {
      row(html, records.get(at));
    }
    html.append("</tbody></table>");
    if (last >= MOST_ROWS) {
      html.append("<p>The latest ").append(MOST_ROWS).append(" of ").append(last + 1).append(" are shown.</p>");
    }
  }

  private static void row(StringBuilder html, JsonNode record) {
    boolean isRunning = record.path("state").asText().equals("running");
    String phase = isRunning ? " (" + record.path("phase").asText() + ")" : "";
    String failure = record.path("failure").asText("");
    html.append("<tr>");
    cell(html, record.path("name").asText());
    cell(html, record.path("stages").asText(""));
    cell(html, record.path("state").asText() + phase);
    cell(html, String.format(Locale.ROOT, "%,d", record.path("inputs").asLong()));
    cell(html, String.format(Locale.ROOT, "%,d", record.path("partitions").asLong()));
    cell(html, String.format(Locale.ROOT, "%,d", record.path("rows").asLong()));
    cell(html, size(record.path("bytes").asLong()));
    cell(html, skew(record.path("sizes")));
    cell(html, record.path("copies").asText());
    cell(html, joined(record.path("servers"), null, Integer.MAX_VALUE));
    cell(html, String.format(Locale.ROOT, "%,d", record.path("repeated").asLong()));
    String troubles = joined(record.path("troubles"), "what", MOST_TROUBLES);
    long more = record.path("more_troubles").asLong() + Math.max(0, record.path("troubles").size() - MOST_TROUBLES);
    cell(
        html,
        troubles
            + (more > 0 ? "; " + more + " more" : "")
            + (failure.isEmpty() || failure.equals("null") ? "" : "; " + failure));
    html.append("</tr>");
  }

  private static void cell(StringBuilder html, String text) {
    html.append("<td>").append(escaped(text)).append("</td>");
  }

  /** How many times as large as the average the largest partition is; empty: that is not known yet. */
  private static String skew(JsonNode sizes) {
    long bytes = sizes.path("bytes").asLong();
    long count = sizes.path("count").asLong();
    long largest = sizes.path("largest").path(0).path(1).asLong();
    return bytes == 0 || count == 0
        ? ""
        : String.format(Locale.ROOT, "%.1f", largest * (double) count / bytes);
  }

  private static String joined(JsonNode list, String field, int most) {
    List<String> texts = new ArrayList<>();
    for (JsonNode one : list) {
      if (texts.size() < most) {
        texts.add((field == null ? one : one.path(field)).asText());
      }
    }
    return String.join(field == null ? ", " : "; ", texts);
  }

  private static String size(long bytes) {
    String[] units = {"B", "KiB", "MiB", "GiB", "TiB"};
    double rest = bytes;
    int unit = 0;
    while (rest >= 1024 && unit < units.length - 1) {
      rest /= 1024;
      unit++;
    }
    return unit == 0 ? bytes + " B" : String.format(Locale.ROOT, "%.1f %s", rest, units[unit]);
  }

  static String escaped(String text) {
    return text.replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("\"", "&quot;")
        .replace("'", "&#39;");
  }
}
