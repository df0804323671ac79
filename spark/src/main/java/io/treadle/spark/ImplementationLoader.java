package io.treadle.spark;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import java.util.jar.Attributes;
import java.util.jar.Manifest;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;

/**
 * Loads the package of {@link ShuffleImplementation#CLASS} from a jar in memory, with its native library, and nothing else:
 * the class path may have another version of it.
 */
final class ImplementationLoader extends ClassLoader {
  private static final String PACKAGE =
      ShuffleImplementation.CLASS.substring(0, ShuffleImplementation.CLASS.lastIndexOf('.') + 1);

  private static final String FOLDER = PACKAGE.replace('.', '/');
  private static final String NATIVE = "native/";
  private static final String MANIFEST = "META-INF/MANIFEST.MF";

  /** What a jar says it is made for. */
  private static final String INTERFACE = "Treadle-Interface";

  private static final long MOST_BYTES = 1 << 30;

  /** How libraries of 64 bits begin: the first four bytes, and how long the head is. */
  private static final int ELF = 0x464c457f;

  private static final int ELF_HEAD = 64;

  static {
    registerAsParallelCapable();
  }

  private final Map<String, byte[]> files = new HashMap<>();
  private final String version;

  /**
   * Reads a jar.
   *
   * @throws IOException if it is none, or made for another interface
   */
  ImplementationLoader(byte[] jar, String url) throws IOException {
    super(ImplementationLoader.class.getClassLoader());
    Attributes about = new Attributes();
    long bytes = 0;
    try (ZipInputStream in = new ZipInputStream(new ByteArrayInputStream(jar))) {
      for (ZipEntry entry = in.getNextEntry(); entry != null; entry = in.getNextEntry()) {
        String name = entry.getName();
        if (name.equals(MANIFEST)) {
          about = new Manifest(in).getMainAttributes();
        } else if (!entry.isDirectory() && (name.startsWith(FOLDER) || name.startsWith(NATIVE))) {
          byte[] file = read(in, url, MOST_BYTES - bytes);
          if (name.endsWith(".so") && !isWhole(file)) {
            throw new IOException(url + " has a library that is cut, or none: " + name);
          }
          bytes += file.length;
          files.put(name, file);
        }
      }
    } catch (IllegalArgumentException error) {
      throw new IOException(url + " is no jar: " + error.getMessage(), error);
    }
    String made = about.getValue(INTERFACE);
    if (!String.valueOf(ShuffleImplementation.INTERFACE).equals(made)) {
      throw new IOException(
          url
              + (made == null ? " is no implementation of Treadle" : " is made for interface " + made)
              + ": the jar on the class path takes those of interface "
              + ShuffleImplementation.INTERFACE);
    }
    String named = about.getValue(Attributes.Name.IMPLEMENTATION_VERSION);
    version = named == null ? "of no name" : named;
  }

  /**
   * Whether what is at the end of a library is there: the table of its sections. The system's loader ends the process if a
   * library is cut.
   */
  private static boolean isWhole(byte[] file) {
    if (file.length < ELF_HEAD) {
      return false;
    }
    ByteBuffer head = ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN);
    long start = head.getLong(40);
    long length = (long) Short.toUnsignedInt(head.getShort(58)) * Short.toUnsignedInt(head.getShort(60));
    return head.getInt(0) == ELF && start > 0 && start <= file.length - length;
  }

  private static byte[] read(InputStream in, String url, long most) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    byte[] piece = new byte[64 << 10];
    for (int length = in.read(piece); length >= 0; length = in.read(piece)) {
      if (bytes.size() + length > most) {
        throw new IOException(url + " has more than " + MOST_BYTES + " bytes in it");
      }
      bytes.write(piece, 0, length);
    }
    return bytes.toByteArray();
  }

  /** For people. */
  String version() {
    return version;
  }

  @Override
  protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
    if (!name.startsWith(PACKAGE)) {
      return super.loadClass(name, resolve);
    }
    synchronized (getClassLoadingLock(name)) {
      Class<?> known = findLoadedClass(name);
      return known == null ? findClass(name) : known;
    }
  }

  @Override
  protected Class<?> findClass(String name) throws ClassNotFoundException {
    byte[] bytes = files.get(name.replace('.', '/') + ".class");
    if (bytes == null) {
      throw new ClassNotFoundException(name);
    }
    return defineClass(name, bytes, 0, bytes.length);
  }

  @Override
  public InputStream getResourceAsStream(String name) {
    if (!name.startsWith(NATIVE)) {
      return super.getResourceAsStream(name);
    }
    byte[] bytes = files.get(name);
    return bytes == null ? null : new ByteArrayInputStream(bytes);
  }
}
