package seeds

import (
	"os"
	"testing"

	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

func TestMain(m *testing.M) { os.Exit(rigtest.Run(m)) }
