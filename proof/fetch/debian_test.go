package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServicesAreForbiddenWhileAPackageIsInstalledAndAPolicyThatIsThereStays(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	lift, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(policy); err != nil || !strings.Contains(string(text), "exit 101") {
		t.Errorf("policy %q, %v", text, err)
	}
	again, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := again(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(policy); err != nil {
		t.Errorf("a policy of somebody else's was removed: %v", err)
	}
	if err := lift(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(policy); err == nil {
		t.Error("the policy stays")
	}
}
