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
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.auth.login.Configuration;

/**
 * A server of LOCKKEEPER in a process of its own, where the tests want one of ZooKeeper's in theirs. What tests set by
 * properties of Java for the server that they start is told to it as flags.
 */
public final class Served {
    private final Process process;
    private final InetSocketAddress address;

    /** Starts it and waits until it serves. */
    public Served(InetSocketAddress wanted, File directory, List<String> flags) throws IOException {
        // Theirs listens on all addresses where none is named; no stranger has business with a server of a test.
        boolean named = wanted.getAddress() != null && wanted.getAddress().isLoopbackAddress();
        InetAddress host = named ? wanted.getAddress() : InetAddress.getByName("127.0.0.1");
        String listen = (host instanceof Inet6Address ? "[::1]:" : "127.0.0.1:") + wanted.getPort();
        File data = new File(directory, "lockkeeper");
        List<String> command = new ArrayList<>(List.of(System.getenv("LOCKKEEPER"), "serve", "--listen", listen));
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
        // It prints its address once it serves.
        BufferedReader said = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String served = said.readLine();
        if (served == null) {
            throw new IOException("the server does not start: " + command);
        }
        address = new InetSocketAddress(host, Integer.parseInt(served.substring(served.lastIndexOf(':') + 1)));
        // A class of tests that never came here has judged something else.
        Path started = Path.of(System.getProperty("build.test.dir"), "started");
        Files.writeString(started, command + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    /** The users of the suites, and those that a test has put into its JAAS file. */
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
            // No JAAS file, or none that says something of a server.
        }
        for (AppConfigurationEntry entry : entries == null ? new AppConfigurationEntry[0] : entries) {
            for (Map.Entry<String, ?> option : entry.getOptions().entrySet()) {
                if (option.getKey().startsWith("user_")) {
                    String user = "sasl " + option.getKey().substring(5) + ":";
                    // A later line of the same user would be refused.
                    accounts = new StringBuilder(accounts.toString().replaceAll("(?m)^" + user + ".*\n", ""));
                    accounts.append(user).append(option.getValue()).append('\n');
                }
            }
        }
        Files.createDirectories(directory.toPath());
        return Files.writeString(directory.toPath().resolve("accounts"), accounts);
    }

    /** Where it listens: on a port of its choice if none was wanted. */
    public InetSocketAddress address() {
        return address;
    }

    /** Stops it as an administrator would. */
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

    /** Waits for its end. */
    public void join() throws InterruptedException {
        process.waitFor();
    }
}
