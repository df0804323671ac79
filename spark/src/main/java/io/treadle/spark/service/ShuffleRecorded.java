package io.treadle.spark.service;

import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.kvstore.KVIndex;

/**
 * What the service's record of a shuffle says now. It is an event of Spark's log, by the name of this class, and what the
 * history server keeps of it. Fields may come, and none may change its type: a log that cannot be read has no page at all.
 */
@JsonIgnoreProperties(ignoreUnknown = true)
public final class ShuffleRecorded implements SparkListenerEvent {
  /** Its number in the service. */
  @KVIndex
  @JsonProperty("number")
  private final long number;

  /** It rises: events that were made one after the other may come to the log in another order. */
  @JsonProperty("at")
  private final long at;

  /** A JSON object, as {@code treadle shuffle list --json} has it: the fields that the tab shows. */
  @JsonProperty("record")
  private final String record;

  @JsonCreator
  ShuffleRecorded(
      @JsonProperty("number") long number,
      @JsonProperty("at") long at,
      @JsonProperty("record") String record) {
    this.number = number;
    this.at = at;
    this.record = record;
  }

  long number() {
    return number;
  }

  long at() {
    return at;
  }

  String record() {
    return record;
  }
}
