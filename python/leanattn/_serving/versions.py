"""versions.py -- the versions of an inference engine that a backend is written for, and what happens with any other."""
import os
import re


class Versions:
    """The tried versions of an engine.

    engine   its name, as messages have it; the package is called so in small letters
    modules  {version: module that is written for it}; all versions have the same number of parts, and further parts do not matter
    anyway   the environment variable that goes on with any version, where it is 1
    flag     what chooses another backend
    logger   where warnings go
    """

    def __init__(self, engine, modules, *, anyway, flag, logger):
        self.engine, self.modules, self.anyway, self.flag, self.logger = engine, modules, anyway, flag, logger
        self._parts = len(next(iter(modules)).split("."))

    def module_for(self, version):
        """The name of the module for a version. Raises RuntimeError, with what to do, where none was ever tried with it."""
        release = self._release(version)
        if release in self.modules:
            return self.modules[release]
        if os.environ.get(self.anyway) == "1":
            nearest = self._nearest(release)
            self.logger.warning("leanattn was never tried with %s %s, and goes on as with %s because %s=1", self.engine, version, nearest, self.anyway)
            return self.modules[nearest]
        # Not an ImportError, of which engines may show the name only.
        raise RuntimeError(f"leanattn was never tried with {self.engine} {version}. {self.tried()} Use one of these, or choose another {self.flag}; "
                           f"{self.anyway}=1 tries it all the same")

    def warn_not_registered(self, error):
        """Says why an engine has no backend of leanattn, by what importing the engine's interface for backends raised."""
        package = self.engine.lower()
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing == package:
            why = f"{self.engine} is not installed"
        elif missing is not None and missing.partition(".")[0] != package:
            why = f"{self.engine} cannot be imported ({error})"
        else:
            why = f"this {self.engine} has another interface for backends ({error})"
        self.logger.warning("leanattn is not registered: %s. %s", why, self.tried())

    def tried(self):
        """The versions in a sentence."""
        *before, last = (f"{version}.*" for version in self.modules)
        return f"It is written for {self.engine} {', '.join(before)} and {last}." if before else f"It is written for {self.engine} {last}."

    def _release(self, version):
        found = re.match(r"\d+(?:\.\d+)*", str(version))
        return ".".join(found[0].split(".")[:self._parts]) if found else ""

    def _nearest(self, release):
        """The newest tried version that is not newer; the newest of all for a version without numbers, as builds from source may have."""
        if not release:
            return max(self.modules, key=_numbers)
        return max((tried for tried in self.modules if _numbers(tried) <= _numbers(release)), key=_numbers, default=min(self.modules, key=_numbers))


def _numbers(release):
    return [int(part) for part in release.split(".")]
