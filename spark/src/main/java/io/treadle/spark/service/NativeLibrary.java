package io.treadle.spark.service;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;

/** Loads the native library that is in the jar. */
final class NativeLibrary {
  private NativeLibrary() {}

  /**
   * Loads it from a file that is gone afterwards. A file is loaded by one class loader of a JVM, and there may be several.
   *
   * @throws UnsatisfiedLinkError if the jar has none for this machine, or it cannot be loaded
   */
  static void load() {
    String name = resource();
    try (InputStream library = NativeLibrary.class.getResourceAsStream(name)) {
      if (library == null) {
        throw new UnsatisfiedLinkError("Treadle's jar has no " + name + ": there is none for this machine");
      }
      Path file = Files.createTempFile("treadle-shuffle", ".so");
      try {
        Files.copy(library, file, StandardCopyOption.REPLACE_EXISTING);
        System.load(file.toString());
      } finally {
        Files.deleteIfExists(file);
      }
    } catch (IOException error) {
      UnsatisfiedLinkError failed =
          new UnsatisfiedLinkError(
              "Treadle's native library cannot be written to java.io.tmpdir: " + error.getMessage());
      failed.initCause(error);
      throw failed;
    }
  }

  private static String resource() {
    String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
    String known = machine.equals("amd64") ? "x86_64" : machine;
    String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    return "/native/" + system + "-" + known + "/libtreadle_shuffle_jvm.so";
  }
}
