import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.web.WebHdfsFileSystem;
import org.apache.hadoop.shaded.javax.ws.rs.core.Application;
import org.apache.hadoop.shaded.javax.ws.rs.core.Link;
import org.apache.hadoop.shaded.javax.ws.rs.core.MediaType;
import org.apache.hadoop.shaded.javax.ws.rs.core.Response;
import org.apache.hadoop.shaded.javax.ws.rs.core.UriBuilder;
import org.apache.hadoop.shaded.javax.ws.rs.core.Variant;
import org.apache.hadoop.shaded.javax.ws.rs.ext.RuntimeDelegate;

/** Hadoop's own client of WebHDFS: reads a file, writes one, and tries to rename over another. */
public class HadoopClient {
  /** Parses media types, in place of the part of Jersey that Spark's jars leave out. */
  static class MediaTypes extends RuntimeDelegate {
    @Override
    public UriBuilder createUriBuilder() {
      throw new UnsupportedOperationException();
    }

    @Override
    public Link.Builder createLinkBuilder() {
      throw new UnsupportedOperationException();
    }

    @Override
    public Response.ResponseBuilder createResponseBuilder() {
      throw new UnsupportedOperationException();
    }

    @Override
    public Variant.VariantListBuilder createVariantListBuilder() {
      throw new UnsupportedOperationException();
    }

    @Override
    public <T> T createEndpoint(Application application, Class<T> type) {
      throw new UnsupportedOperationException();
    }

    @Override
    @SuppressWarnings("unchecked")
    public <T> RuntimeDelegate.HeaderDelegate<T> createHeaderDelegate(Class<T> type) {
      return (RuntimeDelegate.HeaderDelegate<T>)
          new RuntimeDelegate.HeaderDelegate<MediaType>() {
            @Override
            public MediaType fromString(String text) {
              String[] parts = text.split(";")[0].split("/");
              return new MediaType(parts[0], parts[1]);
            }

            @Override
            public String toString(MediaType type) {
              return type.getType() + "/" + type.getSubtype();
            }
          };
    }
  }

  public static void main(String[] arguments) throws Exception {
    RuntimeDelegate.setInstance(new MediaTypes());
    Path directory = new Path(arguments[0]);
    FileSystem files = FileSystem.get(URI.create(arguments[0]), new Configuration());
    for (FileStatus status : files.listStatus(directory)) {
      System.out.println(status.getPath().getName() + " " + status.getLen());
    }
    long sum = 0;
    Path source = new Path(directory, "ours.bin");
    byte[] block = new byte[(int) files.getFileStatus(source).getLen()];
    try (FSDataInputStream input = files.open(source)) {
      input.readFully(0, block);
    }
    for (byte value : block) {
      sum += value & 0xff;
    }
    System.out.println("sum " + sum);
    Path written = new Path(directory, "theirs.bin");
    try (FSDataOutputStream output = files.create(written, false)) {
      output.write("written by Hadoop".getBytes(StandardCharsets.UTF_8));
    }
    System.out.println("renamed over a file " + files.rename(written, source));
    System.out.println("renamed " + files.rename(written, new Path(directory, "renamed.bin")));
    try (FSDataOutputStream output = files.create(written, true)) {
      output.write("written again".getBytes(StandardCharsets.UTF_8));
    }
    ((WebHdfsFileSystem) files)
        .rename(written, new Path(directory, "renamed.bin"), Options.Rename.OVERWRITE);
    System.out.println("deleted " + files.delete(new Path(directory, "none"), false));
  }
}
