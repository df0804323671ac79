package io.treadle.spark;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URI;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FileSystem;
import org.apache.spark.SparkConf;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.rpc.RpcEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Implementations that are no part of the jar on the class path. The driver chooses one by the settings, and executors load
 * what it has chosen, or fail: an application never has two.
 */
final class Implementations {
  static final String WHERE = "spark.treadle.implementation";
  static final String DIGEST = "spark.treadle.implementation.sha256";

  /** Which one is used. It is shown, and nobody sets it. */
  static final String USED = "spark.treadle.implementation.used";

  private static final Logger LOG = LoggerFactory.getLogger(Implementations.class);

  /** In a folder, this file names the version of new applications: a line of {@code sha256sum}. */
  private static final String CURRENT = "current";

  private static final Pattern LINE =
      Pattern.compile("([0-9a-fA-F]{64}) [ *]([A-Za-z0-9][A-Za-z0-9._+-]*\\.jar)\\s*");

  private static final Pattern PASSWORD = Pattern.compile("[^/]*//[^/@]*:[^/@]*@");

  private static final int MOST_BYTES = 256 << 20;
  private static final int MOST_LINE = 4 << 10;
  private static final int PIECE = 64 << 10;

  /** By digests, what has loaded well: later applications of this JVM have the same classes. */
  private static final ConcurrentHashMap<String, ImplementationLoader> LOADERS =
      new ConcurrentHashMap<>();

  private Implementations() {}

  /** An implementation, and where it is from. */
  static final class Loaded {
    final ShuffleImplementation implementation;
    final ImplementationSource source;

    Loaded(ShuffleImplementation implementation, ImplementationSource source) {
      this.implementation = implementation;
      this.source = source;
    }
  }

  /**
   * What the settings of the driver name; null: the one in the jar, since they name none, or that cannot be used.
   *
   * @throws IllegalArgumentException if the digest is missing, or none; or the URL has a password
   */
  static Loaded chosen(SparkConf conf) {
    String where = conf.get(WHERE, null);
    if (where == null) {
      return null;
    }
    if (PASSWORD.matcher(where).lookingAt()) {
      throw new IllegalArgumentException(
          WHERE + " has a password in it, which Spark would show: give it to the file system by its own settings");
    }
    String digest = conf.get(DIGEST, null);
    boolean isJar = where.endsWith(".jar");
    if (digest == null ? isJar : !digest.matches("[0-9a-fA-F]{64}")) {
      throw new IllegalArgumentException(
          DIGEST + " must be the SHA-256 of " + where + ": 64 digits, as sha256sum prints them");
    }
    try {
      ImplementationSource source = source(where, digest, isJar, conf);
      ShuffleImplementation implementation = make(source.jar(), source, conf, true);
      conf.set(USED, source.toString());
      return new Loaded(implementation, source);
    } catch (IOException | RuntimeException | LinkageError error) {
      LOG.warn(
          "The implementation of Treadle in the jar on the class path is used, and not that of {}={}: {}",
          WHERE,
          where,
          text(error));
      return null;
    }
  }

  /**
   * What the driver has chosen, in an executor.
   *
   * @throws IllegalStateException if it cannot be had: the task fails, and another one tries it again
   */
  static ShuffleImplementation loaded(ImplementationSource source, SparkConf conf, RpcEnv env) {
    StringBuilder why = new StringBuilder();
    for (String url : new String[] {source.url, source.atDriver()}) {
      if (url == null) {
        continue;
      }
      boolean isAtDriver = url.equals(source.atDriver());
      try {
        byte[] jar =
            within(conf, url, () -> isAtDriver ? read(channel(env, url), url, MOST_BYTES) : fetch(url, MOST_BYTES, conf));
        check(jar, source.digest, url);
        return make(jar, source, conf, false);
      } catch (IOException | RuntimeException | LinkageError error) {
        why.append(why.length() == 0 ? "" : "; ").append(text(error));
      }
    }
    throw new IllegalStateException(
        "the implementation of Treadle that this application has cannot be loaded here: " + why);
  }

  private static ImplementationSource source(
      String where, String digest, boolean isJar, SparkConf conf) throws IOException {
    String url = where;
    String expected = digest;
    if (!isJar) {
      String file = where.replaceAll("/+$", "") + "/" + CURRENT;
      byte[] bytes = within(conf, file, () -> fetch(file, MOST_LINE, conf));
      Matcher line = LINE.matcher(new String(bytes, StandardCharsets.UTF_8));
      if (!line.matches()) {
        throw new IOException(file + " must have one line of sha256sum, of a jar beside it");
      }
      if (digest != null && !digest.equalsIgnoreCase(line.group(1))) {
        throw new IOException(file + " names " + line.group(1) + ", and " + DIGEST + " is another");
      }
      expected = line.group(1);
      url = where.replaceAll("/+$", "") + "/" + line.group(2);
    }
    String found = url;
    byte[] jar = within(conf, url, () -> fetch(found, MOST_BYTES, conf));
    check(jar, expected, url);
    return new ImplementationSource(url, expected.toLowerCase(Locale.ROOT), jar);
  }

  private static ShuffleImplementation make(
      byte[] jar, ImplementationSource source, SparkConf conf, boolean isDriver)
      throws IOException {
    ImplementationLoader known = LOADERS.get(source.digest);
    ImplementationLoader loader = known == null ? new ImplementationLoader(jar, source.url) : known;
    try {
      Class<?> made = Class.forName(ShuffleImplementation.CLASS, true, loader);
      Object object =
          made.getConstructor(SparkConf.class, boolean.class).newInstance(conf, isDriver);
      ShuffleImplementation implementation = (ShuffleImplementation) object;
      implementation.load();
      LOADERS.putIfAbsent(source.digest, loader);
      LOG.info("The implementation of Treadle is {} of {}", loader.version(), source);
      return implementation;
    } catch (InvocationTargetException error) {
      throw new IOException(source.url + ": " + text(error.getCause()), error);
    } catch (ReflectiveOperationException | ClassCastException error) {
      throw new IOException(source.url + " has no implementation: " + text(error), error);
    }
  }

  private static void check(byte[] jar, String digest, String url) throws IOException {
    byte[] found;
    try {
      found = MessageDigest.getInstance("SHA-256").digest(jar);
    } catch (NoSuchAlgorithmException never) {
      throw new IllegalStateException(never);
    }
    StringBuilder text = new StringBuilder();
    for (byte one : found) {
      text.append(String.format(Locale.ROOT, "%02x", one));
    }
    if (!digest.equalsIgnoreCase(text.toString())) {
      throw new IOException(url + " has the SHA-256 " + text + ", and not " + digest);
    }
  }

  private static byte[] fetch(String url, int most, SparkConf conf) throws IOException {
    try {
      URI uri = URI.create(url.startsWith("/") ? "file://" + url.replace(" ", "%20") : url);
      String scheme = uri.getScheme();
      if (scheme == null) {
        throw new IOException(url + " is neither an absolute path nor a URL");
      }
      if (scheme.equals("file") || scheme.equals("local")) {
        Path file = Paths.get(uri.getPath());
        return read(Files.newInputStream(file), url, most);
      }
      org.apache.hadoop.fs.Path path = new org.apache.hadoop.fs.Path(uri);
      FileSystem files = path.getFileSystem(SparkHadoopUtil.get().newConfiguration(conf));
      return read(files.open(path), url, most);
    } catch (NoSuchFileException | FileNotFoundException error) {
      throw new IOException("there is no " + url, error);
    } catch (IllegalArgumentException error) {
      throw new IOException(url + ": " + error.getMessage(), error);
    }
  }

  private static InputStream channel(RpcEnv env, String url) {
    return Channels.newInputStream(env.openChannel(url));
  }

  private static byte[] read(InputStream from, String url, int most) throws IOException {
    try (InputStream in = from) {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      byte[] piece = new byte[PIECE];
      for (int length = in.read(piece); length >= 0; length = in.read(piece)) {
        if (bytes.size() + length > most) {
          throw new IOException(url + " has more than " + most + " bytes");
        }
        bytes.write(piece, 0, length);
      }
      return bytes.toByteArray();
    }
  }

  /** Does something on another thread: file systems wait as long as they like. */
  private static byte[] within(SparkConf conf, String url, Callable<byte[]> act)
      throws IOException {
    long seconds = conf.getTimeAsSeconds("spark.treadle.connectTimeout", "30s");
    FutureTask<byte[]> task = new FutureTask<>(act);
    Thread thread = new Thread(task, "treadle-implementation");
    thread.setDaemon(true);
    thread.setContextClassLoader(Thread.currentThread().getContextClassLoader());
    thread.start();
    try {
      return task.get(seconds, TimeUnit.SECONDS);
    } catch (TimeoutException late) {
      task.cancel(true);
      throw new IOException(url + " was not read within " + seconds + " s");
    } catch (InterruptedException error) {
      task.cancel(true);
      Thread.currentThread().interrupt();
      throw new IOException("interrupted while reading " + url, error);
    } catch (ExecutionException error) {
      Throwable cause = error.getCause();
      throw cause instanceof IOException ? (IOException) cause : new IOException(url + ": " + text(cause), cause);
    }
  }

  /** In one line. A message alone may be a name that says nothing. */
  private static String text(Throwable error) {
    boolean isPlain = error.getClass() == IOException.class && error.getMessage() != null;
    return isPlain ? error.getMessage() : error.toString();
  }
}
