package lockkeeper.interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;

/**
 * Curator's locks beside ours: one command per process, which reports its progress in lines.
 *
 * <p>{@code count mutex|rw PATH COUNTER ROUNDS}: counts up in a node under the lock. {@code hold PATH}: holds until a
 * revocation request comes. {@code revoke NODE}: writes a revocation request. {@code downgrade PATH}: writes, then keeps
 * reading at the same position until a line comes.
 */
public final class CuratorClient {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 20000, 10000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        switch (args[1]) {
            case "count" -> count(client, args[2].equals("rw"), args[3], args[4], Integer.parseInt(args[5]));
            case "hold" -> hold(client, args[2]);
            case "revoke" -> {
                Revoker.attemptRevoke(client, args[2]);
                say("asked");
            }
            case "downgrade" -> downgrade(client, args[2]);
            default -> throw new IllegalArgumentException(args[1]);
        }
        client.close();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static long number(CuratorFramework client, String counter) throws Exception {
        return Long.parseLong(new String(client.getData().forPath(counter), StandardCharsets.UTF_8));
    }

    private static void count(CuratorFramework client, boolean shared, String path, String counter, int rounds)
            throws Exception {
        InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
        InterProcessLock write = shared ? both.writeLock() : new InterProcessMutex(client, path);
        for (int round = 0; round < rounds; round++) {
            if (shared) {
                both.readLock().acquire();
                long first = number(client, counter);
                Thread.sleep(1);
                if (number(client, counter) != first) {
                    say("a writer changed the number under a reader");
                }
                both.readLock().release();
            }
            write.acquire();
            long next = number(client, counter) + 1;
            client.setData().forPath(counter, Long.toString(next).getBytes(StandardCharsets.UTF_8));
            write.release();
        }
        say("done");
    }

    private static void hold(CuratorFramework client, String path) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        CountDownLatch asked = new CountDownLatch(1);
        mutex.makeRevocable(ignored -> asked.countDown());
        mutex.acquire();
        say("held");
        asked.await();
        say("asked");
        mutex.release();
        say("released");
    }

    private static void downgrade(CuratorFramework client, String path) throws Exception {
        InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
        both.writeLock().acquire();
        say("writes");
        System.in.read();
        both.readLock().acquire();
        both.writeLock().release();
        say("reads");
        System.in.read();
        both.readLock().release();
        say("released");
    }
}
