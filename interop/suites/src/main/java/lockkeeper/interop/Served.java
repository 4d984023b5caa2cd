package lockkeeper.interop;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;

/**
 * A Lockkeeper server in a process of its own, where the tests want a ZooKeeper server in theirs. Java properties that tests
 * set for the server become flags.
 */
public final class Served {
    private final Process process;
    private final InetSocketAddress address;

    /** Starts the server and waits until it serves. */
    public Served(InetSocketAddress wanted, File directory, List<String> flags) throws IOException {
        // ZooKeeper's server listens on all addresses if none is given; a test's server must not accept strangers.
        boolean named = wanted.getAddress() != null && wanted.getAddress().isLoopbackAddress();
        InetAddress host = named ? wanted.getAddress() : InetAddress.getByName("127.0.0.1");
        String listen = (host instanceof Inet6Address ? "[::1]:" : "127.0.0.1:") + wanted.getPort();
        File data = new File(directory, "lockkeeper");
        List<String> command = new ArrayList<>(List.of(System.getenv("LOCKKEEPER"), "serve", "--words", "all", "--listen", listen));
        command.addAll(List.of("--data", data.getPath(), "--accounts", accounts(directory).toString()));
        command.addAll(flags);
        String check = System.getProperty("znode.container.checkIntervalMs");
        if (check != null) {
            command.addAll(List.of("--container-check", check + "ms"));
        }
        String frame = System.getProperty("jute.maxbuffer");
        if (frame != null) {
            command.addAll(List.of("--max-frame", frame));
        }
        if (Boolean.getBoolean("zookeeper.enforceQuota")) {
            command.add("--enforce-quotas");
        }
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroyForcibly));
        // The server prints its address when it serves.
        BufferedReader said = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String served = said.readLine();
        if (served == null) {
            throw new IOException("the server does not start: " + command);
        }
        address = new InetSocketAddress(host, Integer.parseInt(served.substring(served.lastIndexOf(':') + 1)));
        // A test class that never ran this has tested another server.
        Path started = Path.of(System.getProperty("build.test.dir"), "started");
        Files.writeString(started, command + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** Returns the users of the suites and those of the test's JAAS file. */
    private static Path accounts(File directory) throws IOException {
        StringBuilder accounts = new StringBuilder(Files.readString(Path.of(System.getenv("LOCKKEEPER_ACCOUNTS"))));
        String superuser = System.getProperty("zookeeper.DigestAuthenticationProvider.superDigest");
        if (superuser != null) {
            String others = accounts.toString().replaceAll("(?m)^super .*\n", "");
            accounts = new StringBuilder("super " + superuser + "\n" + others);
        }
        AppConfigurationEntry[] entries = null;
        try {
            entries = Configuration.getConfiguration().getAppConfigurationEntry("Server");
        } catch (SecurityException none) {
            // No JAAS file, or one without a server section.
        }
        for (AppConfigurationEntry entry : entries == null ? new AppConfigurationEntry[0] : entries) {
            for (Map.Entry<String, ?> option : entry.getOptions().entrySet()) {
                if (option.getKey().startsWith("user_")) {
                    String user = "sasl " + option.getKey().substring(5) + ":";
                    // The server refuses a second line of the same user.
                    accounts = new StringBuilder(accounts.toString().replaceAll("(?m)^" + user + ".*\n", ""));
                    accounts.append(user).append(option.getValue()).append('\n');
                }
            }
        }
        Files.createDirectories(directory.toPath());
        Path file = Files.writeString(directory.toPath().resolve("accounts"), accounts);
        // The server refuses a file that others may read.
        return Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-------"));
    }

    /** Returns the server's address; it chooses the port if none was given. */
    public InetSocketAddress address() {
        return address;
    }

    /** Stops the server as an administrator would. */
    public void stop() throws IOException {
        process.destroy();
        if (!waitFor(30)) {
            throw new IOException("the server does not stop");
        }
    }

    private boolean waitFor(long seconds) {
        try {
            return process.waitFor(seconds, TimeUnit.SECONDS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            return true;
        }
    }

    /** Waits until the process ends. */
    public void join() throws InterruptedException {
        process.waitFor();
    }
}
