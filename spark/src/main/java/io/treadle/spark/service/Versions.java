package io.treadle.spark.service;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import org.apache.spark.MapOutputTracker;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.UIUtils;
import org.apache.spark.util.collection.ExternalSorter;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function0;
import scala.Option;
import scala.xml.Node;

/** What differs between the versions of Spark, found once. */
final class Versions {
  private static final Logger LOG = LoggerFactory.getLogger(Versions.class);

  private static final String CHECKSUM = "org.apache.spark.shuffle.checksum.RowBasedChecksum";

  /** Up to 4.0 without the checksum. */
  private static final Method MAP_STATUS = method(MapStatus.class, "apply");

  /** From 4.1 on with checksums of rows. */
  private static final Constructor<?> SORTER = ExternalSorter.class.getConstructors()[0];

  /** From 4.1 on. */
  private static final Method ROW_CHECKSUMS = method(ShuffleDependency.class, "rowBasedChecksums");

  private static final MethodHandle UPDATE = handle("update");
  private static final MethodHandle AGGREGATED = handle("getAggregatedChecksumValue");

  private Versions() {}

  /** The status of a map that has run. {@code checksum} counts from 4.1 on. */
  static MapStatus mapStatus(BlockManagerId location, long[] sizes, long mapId, long checksum) {
    Object[] arguments =
        MAP_STATUS.getParameterCount() == 3
            ? new Object[] {location, sizes, mapId}
            : new Object[] {location, sizes, mapId, checksum};
    return (MapStatus) invoke(MAP_STATUS, null, arguments);
  }

  @SuppressWarnings("unchecked")
  static <K, V, C> ExternalSorter<K, V, C> sorter(
      TaskContext context,
      Option<?> aggregator,
      Option<Partitioner> partitioner,
      Option<?> ordering,
      Serializer serializer) {
    Object[] arguments = {context, aggregator, partitioner, ordering, serializer};
    if (SORTER.getParameterCount() > arguments.length) {
      Class<?> checksums = SORTER.getParameterTypes()[arguments.length].getComponentType();
      arguments =
          new Object[] {
            context, aggregator, partitioner, ordering, serializer, Array.newInstance(checksums, 0)
          };
    }
    try {
      return (ExternalSorter<K, V, C>) SORTER.newInstance(arguments);
    } catch (ReflectiveOperationException error) {
      throw unexpected(error);
    }
  }

  /** Spark's checksums of the rows of each partition; empty where there are none. */
  static Object[] rowChecksums(ShuffleDependency<?, ?, ?> dependency) {
    return ROW_CHECKSUMS == null ? new Object[0] : (Object[]) invoke(ROW_CHECKSUMS, dependency);
  }

  static void update(Object checksum, Object key, Object value) {
    try {
      UPDATE.invoke(checksum, key, value);
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable error) {
      throw unexpected(error);
    }
  }

  /** What the checksums of all partitions are together. */
  static long aggregated(Object[] checksums) {
    if (checksums.length == 0) {
      return 0;
    }
    try {
      return (long) AGGREGATED.invoke((Object) checksums);
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable error) {
      throw unexpected(error);
    }
  }

  /**
   * Has Spark prefer no host for tasks that read shuffles. Theirs is none: a stage in which other tasks have a place
   * would wait for it for {@code spark.locality.wait}, and in local mode for ever.
   */
  static void preferNoHost() {
    MapOutputTracker tracker = SparkEnv.get().mapOutputTracker();
    try {
      // What `spark.shuffle.reduceLocality.enabled` said when the tracker was made, before any shuffle manager.
      Field isPreferred = tracker.getClass().getDeclaredField("shuffleLocalityEnabled");
      isPreferred.setAccessible(true);
      isPreferred.setBoolean(tracker, false);
    } catch (ReflectiveOperationException | RuntimeException error) {
      LOG.warn("Set spark.shuffle.reduceLocality.enabled=false: {}", error.toString());
    }
  }

  /** Has Spark's page show the settings as they are now. Without it, the page shows those of the start. */
  static void showEnvironment(SparkContext context) {
    try {
      // Private up to 4.0.
      Method post = SparkContext.class.getDeclaredMethod("postEnvironmentUpdate");
      post.setAccessible(true);
      post.invoke(context);
    } catch (ReflectiveOperationException | RuntimeException error) {
      LOG.warn("Spark's page does not show {}: {}", Labels.MASTER, error.toString());
    }
  }

  /** A page of Spark's UI with a head. {@code request}: that of the servlets of this version, as all that has it. */
  @SuppressWarnings("unchecked")
  static scala.collection.immutable.Seq<Node> page(
      Object request, String title, Function0<?> content, SparkUITab tab) {
    Method page = method(UIUtils.class, "headerSparkPage");
    Object[] arguments = new Object[page.getParameterCount()];
    Object[] first = {request, title, content, tab, Option.empty()};
    // The others say which scripts the page has: one more of them in 4.x.
    Arrays.fill(arguments, Boolean.FALSE);
    System.arraycopy(first, 0, arguments, 0, first.length);
    return (scala.collection.immutable.Seq<Node>) invoke(page, null, arguments);
  }

  private static Method method(Class<?> owner, String name) {
    for (Method method : owner.getMethods()) {
      if (method.getName().equals(name)) {
        return method;
      }
    }
    return null;
  }

  private static MethodHandle handle(String name) {
    try {
      Method method = method(Class.forName(CHECKSUM, false, MapStatus.class.getClassLoader()), name);
      return method == null ? null : MethodHandles.publicLookup().unreflect(method);
    } catch (ClassNotFoundException none) {
      return null;
    } catch (IllegalAccessException error) {
      throw unexpected(error);
    }
  }

  private static Object invoke(Method method, Object owner, Object... arguments) {
    try {
      return method.invoke(owner, arguments);
    } catch (InvocationTargetException error) {
      throw unexpected(error.getCause());
    } catch (IllegalAccessException error) {
      throw unexpected(error);
    }
  }

  private static IllegalStateException unexpected(Throwable error) {
    return new IllegalStateException("Treadle does not know this version of Spark: " + error, error);
  }
}
