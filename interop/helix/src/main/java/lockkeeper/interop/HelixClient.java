package lockkeeper.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Semaphore;

import org.apache.helix.lock.LockInfo;
import org.apache.helix.lock.helix.ZKDistributedNonblockingLock;

/**
 * Helix's own lock: commands are lines on standard input; each answer and each event is a line on standard output.
 *
 * <pre>
 * new ID PATH LEASE PRIORITY WAITING CLEANUP FORCEFUL   -> ok ID
 * try ID      -> trying ID, and later: tried ID true|false|failed
 * unlock ID   -> unlocked ID true|false
 * owner ID    -> owner ID true|false
 * info ID     -> info ID OWNER MESSAGE PRIORITY REQUESTOR
 * finish ID   -> finishing ID; ends the cleanup that printed: cleanup ID
 * </pre>
 */
public final class HelixClient {
  private final String servers;
  private final Map<String, ZKDistributedNonblockingLock> locks = new HashMap<>();
  private final Map<String, Semaphore> cleanups = new HashMap<>();

  private HelixClient(String servers) {
    this.servers = servers;
  }

  public static void main(String[] args) throws Exception {
    HelixClient client = new HelixClient(args[0]);
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    say("ready");
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      client.obey(line.trim().split(" "));
    }
    // The test has closed the input. Helix's threads would keep the process alive.
    System.exit(0);
  }

  private static synchronized void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  private void obey(String[] words) {
    String id = words[1];
    switch (words[0]) {
      case "new":
        locks.put(id, make(id, words));
        say("ok " + id);
        break;
      case "try":
        say("trying " + id);
        new Thread(() -> tryLock(id)).start();
        break;
      case "unlock":
        say("unlocked " + id + " " + locks.get(id).unlock());
        break;
      case "owner":
        say("owner " + id + " " + locks.get(id).isCurrentOwner());
        break;
      case "info":
        LockInfo info = locks.get(id).getCurrentLockInfo();
        say("info " + id + " " + info.getOwner() + " " + info.getMessage() + " " + info.getPriority() + " "
            + info.getRequestorId());
        break;
      case "finish":
        cleanups.get(id).release();
        say("finishing " + id);
        break;
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private ZKDistributedNonblockingLock make(String id, String[] words) {
    Semaphore finished = new Semaphore(0);
    cleanups.put(id, finished);
    String path = words[2];
    ZKDistributedNonblockingLock.Builder builder = new ZKDistributedNonblockingLock.Builder();
    builder.setLockScope(() -> path).setZkAddress(servers);
    return builder.setTimeout(Long.parseLong(words[3]))
        .setLockMsg("by-helix")
        .setUserId(id)
        .setPriority(Integer.parseInt(words[4]))
        .setWaitingTimeout(Long.parseLong(words[5]))
        .setCleanupTimeout(Long.parseLong(words[6]))
        .setIsForceful(Boolean.parseBoolean(words[7]))
        .setLockListener(() -> {
          say("cleanup " + id);
          finished.acquireUninterruptibly();
        })
        .build();
  }

  private void tryLock(String id) {
    try {
      say("tried " + id + " " + locks.get(id).tryLock());
    } catch (RuntimeException error) {
      say("tried " + id + " failed");
    }
  }
}
