package lockkeeper.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderLatchListener;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;
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
 * reading at the same position until a line comes. {@code latch PATH ID} and {@code selector PATH ID}: stands for election, and
 * reads lines while it leads: {@code contenders}, and {@code resign}, after which it stands again. {@code nest}: each line is the
 * path of a lock that it takes while it keeps the others; it releases all at the end of its input. {@code short PATH ROUNDS}:
 * holds the lock for 20 ms again and again, and prints the path of each node with the times of the request, the grant, and before and
 * after the release.
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
            case "latch" -> latch(client, args[2], args[3]);
            case "nest" -> nest(client);
            case "short" -> shortly(client, args[2], Integer.parseInt(args[3]));
            case "selector" -> selector(client, args[2], args[3]);
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

    private static final BufferedReader LINES = new BufferedReader(new InputStreamReader(System.in));

    private interface Contenders {
        Collection<Participant> get() throws Exception;
    }

    /** Answers lines until one says that the leader resigns; false at their end. */
    private static boolean leads(Contenders contenders) throws Exception {
        say("leads");
        while (true) {
            String line = LINES.readLine();
            if (line == null) {
                return false;
            }
            if (line.equals("resign")) {
                return true;
            }
            say(contenders.get().stream().map(Participant::getId).collect(Collectors.joining(" ")));
        }
    }

    private static void latch(CuratorFramework client, String path, String id) throws Exception {
        boolean again = true;
        while (again) {
            CountDownLatch elected = new CountDownLatch(1);
            LeaderLatch latch = new LeaderLatch(client, path, id);
            latch.addListener(new LeaderLatchListener() {
                @Override
                public void isLeader() {
                    elected.countDown();
                }

                @Override
                public void notLeader() {}
            });
            latch.start();
            elected.await();
            again = leads(latch::getParticipants);
            latch.close();
            if (again) {
                say("resigned");
            }
        }
    }

    private static void selector(CuratorFramework client, String path, String id) throws Exception {
        CountDownLatch ended = new CountDownLatch(1);
        LeaderSelector[] selector = new LeaderSelector[1];
        selector[0] = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework ignored) throws Exception {
                if (leads(selector[0]::getParticipants)) {
                    say("resigned");
                } else {
                    ended.countDown();
                }
            }
        });
        selector[0].setId(id);
        selector[0].autoRequeue();
        selector[0].start();
        ended.await();
        selector[0].close();
    }

    private static void nest(CuratorFramework client) throws Exception {
        say("connected");
        List<InterProcessLock> locks = new ArrayList<>();
        for (String path = LINES.readLine(); path != null; path = LINES.readLine()) {
            locks.add(new InterProcessMutex(client, path));
            locks.get(locks.size() - 1).acquire();
        }
        for (InterProcessLock lock : locks) {
            lock.release();
        }
    }

    /** A mutex that names its node. */
    private static final class Named extends InterProcessMutex {
        Named(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    private static void shortly(CuratorFramework client, String path, int rounds) throws Exception {
        Named mutex = new Named(client, path);
        for (int round = 0; round < rounds; round++) {
            long asked = System.currentTimeMillis();
            mutex.acquire();
            long granted = System.currentTimeMillis();
            String node = mutex.node();
            Thread.sleep(20);
            long before = System.currentTimeMillis();
            mutex.release();
            say("cycle " + node + " " + asked + " " + granted + " " + before + " " + System.currentTimeMillis());
        }
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
