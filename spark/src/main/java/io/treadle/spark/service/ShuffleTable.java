package io.treadle.spark.service;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** Shuffles as HTML, while they run and in the history server. What users or others have named is escaped. */
final class ShuffleTable {
  /** Shuffles, reasons, and troubles of a shuffle that are shown. */
  static final int MOST_ROWS = 500;

  static final int MOST_REASONS = 20;
  private static final int MOST_TROUBLES = 5;

  private static final String[] HEADINGS = {
    "Shuffle", "Stages", "State", "Maps", "Partitions", "Rows", "Size", "Skew", "Copies", "Servers",
    "Ran again", "Troubles",
  };

  /** What is read of a record, and of its sizes. */
  private static final String[] FIELDS = {
    "number", "name", "stages", "state", "phase", "failure", "inputs", "partitions", "rows", "bytes", "sizes", "copies",
    "servers", "repeated", "troubles", "more_troubles",
  };

  private static final String[] SIZES = {"bytes", "count", "largest"};

  private ShuffleTable() {}

  /** A record without what is not shown. */
  static ObjectNode shown(ObjectNode record) {
    ObjectNode shown = record.deepCopy();
    shown.retain(FIELDS);
    if (shown.path("sizes") instanceof ObjectNode) {
      ((ObjectNode) shown.path("sizes")).retain(SIZES);
    }
    return shown;
  }

  /** How many shuffles are in files, and why the latest ones are. */
  static void inFiles(StringBuilder html, long count, List<String> reasons) {
    html.append("<p>").append(count).append(" shuffles in files of executors, as without Treadle.</p>");
    if (!reasons.isEmpty()) {
      html.append("<ul>");
      for (String reason : reasons) {
        html.append("<li>").append(escaped(reason)).append("</li>");
      }
      html.append("</ul>");
    }
  }

  /** The latest record first, of {@code count}. */
  static void table(StringBuilder html, Iterable<JsonNode> records, long count) {
    html.append("<table class=\"table table-bordered table-sm table-striped\" id=\"treadle-shuffles\"><thead><tr>");
    for (String heading : HEADINGS) {
      html.append("<th>").append(heading).append("</th>");
    }
    html.append("</tr></thead><tbody>");
    for (JsonNode record : records) {
      row(html, record);
    }
    html.append("</tbody></table>");
    if (count > MOST_ROWS) {
      html.append("<p>The latest ").append(MOST_ROWS).append(" of ").append(count).append(" are shown.</p>");
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
