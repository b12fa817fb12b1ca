"""Elf: reads what a shared library or program imports and exports, and renames it.

The dynamic loader finds symbols by name in all libraries of a process. Two libraries of a process that define the same
names therefore disturb each other, whatever folders they come from. `Elf.renamed` gives a copy whose libraries and
symbols have other names. It changes names only: no code moves, and no address changes.

How: the string table cannot grow in its place, so its copy, with the new names appended, goes to the end of the file. A
PT_LOAD maps it there. It takes the program header of a PT_NOTE, which nothing needs at run time. GNU hash tables need
the symbols in the order of their hashes. An old-style hash table (DT_HASH), which the loader reads as well, takes its
place if exported names change, so that the symbols, and the relocations that refer to them by number, stay as they are.

Reads ELF of 64 bits with the least significant byte first (x86-64, aarch64). Errors are ElfError.
"""

import dataclasses
import struct

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_SHT_DYNSYM, _SHT_HASH = 11, 5
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 0, 1, 4, 5, 6, 10
_DT_SONAME, _DT_RPATH, _DT_RUNPATH = 14, 15, 29
_DT_GNU_HASH, _DT_VERSYM, _DT_VERDEF, _DT_VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_STB_LOCAL = 0
_SHN_UNDEF = 0


class ElfError(Exception):
    pass


@dataclasses.dataclass
class _Segment:
    place: int  # Of its header in the file.
    kind: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int


@dataclasses.dataclass
class _Symbol:
    place: int  # Of its entry in the file.
    name: str
    defined: bool


class Elf:
    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            self._data = file.read()
        if self._data[:6] != b"\x7fELF\x02\x01" or self._unpack("<H", 16)[0] not in (2, 3):
            raise ElfError(f"{path}: no shared library or program of 64 bits")
        at, = self._unpack("<Q", 32)
        size, count = self._unpack("<HH", 54)
        self._segments = []
        for place in range(at, at + size * count, size):
            kind, offset, address, _, *sizes = self._unpack("<I4xQQQQQQ", place)
            self._segments.append(_Segment(place, kind, offset, address, *sizes))
        self._read_dynamic()
        self._read_symbols()

    def _unpack(self, form, at):
        return struct.unpack_from(form, self._data, at)

    def _offset(self, address):
        for s in self._segments:
            if s.kind == _PT_LOAD and s.address <= address < s.address + s.file_size:
                return s.offset + address - s.address
        raise ElfError(f"{self.path}: no byte of the file lies at address {address:#x}")

    def _read_dynamic(self):
        found = [s for s in self._segments if s.kind == _PT_DYNAMIC]
        if not found:
            raise ElfError(f"{self.path}: statically linked, so that the loader renames and loads nothing")
        self._entries = []  # (place in the file, tag, value), to the first DT_NULL; then the spare ones.
        self._spare = []
        for place in range(found[0].offset, found[0].offset + found[0].file_size, 16):
            tag, value = self._unpack("<qQ", place)
            if tag == _DT_NULL or self._spare:
                self._spare.append(place)
            else:
                self._entries.append((place, tag, value))
        values = {tag: value for _, tag, value in self._entries}
        self._values = values
        begin = self._offset(values[_DT_STRTAB])
        self._strings = self._data[begin:begin + values[_DT_STRSZ]]

    def _string(self, at):
        return self._strings[at:self._strings.index(b"\0", at)].decode()

    def _read_symbols(self):
        at, = self._unpack("<Q", 40)
        size, count = self._unpack("<HH", 58)
        self._sections = list(range(at, at + size * count, size))
        table = [self._unpack("<QQ", place + 24) for place in self._sections
                 if self._unpack("<I", place + 4)[0] == _SHT_DYNSYM]
        if not table:
            raise ElfError(f"{self.path}: no section has the dynamic symbols")
        offset, size = table[0]
        self._symbols = []
        for place in range(offset, offset + size, 24):
            name, info, _, section = self._unpack("<IBBH", place)
            name = self._string(name) if info >> 4 != _STB_LOCAL else ""
            self._symbols.append(_Symbol(place, name, section != _SHN_UNDEF))

    def _texts(self, tag):
        return [self._string(value) for _, found, value in self._entries if found == tag]

    @property
    def soname(self):
        """The name by which others need this library, or None."""
        return (self._texts(_DT_SONAME) or [None])[0]

    @property
    def needed(self):
        """The names of the libraries that the loader loads with this one."""
        return self._texts(_DT_NEEDED)

    @property
    def runpath(self):
        """The folders, separated by colons, in which the loader looks for them first; "" if there are none."""
        return (self._texts(_DT_RUNPATH) + self._texts(_DT_RPATH) + [""])[0]

    @property
    def exported(self):
        """The names of the symbols that others may use."""
        return {s.name for s in self._symbols if s.defined and s.name}

    @property
    def imported(self):
        """The names of the symbols that it uses of others."""
        return {s.name for s in self._symbols if not s.defined and s.name}

    def renamed(self, libraries, symbols, runpath):
        """Returns the bytes of a copy. `libraries` maps names of libraries, needed ones and its own, to new ones, and
        `symbols` those of symbols, imported and exported ones; others keep theirs. `runpath` replaces the folders in
        which the loader looks for libraries."""
        return _Renaming(self, libraries, symbols).result(runpath)


class _Renaming:
    """A copy of an Elf in the making."""

    def __init__(self, elf, libraries, symbols):
        self._elf, self._libraries, self._symbols = elf, libraries, symbols
        self._data = bytearray(elf._data)
        self._strings = bytearray(elf._strings)
        self._added = {}  # The places of the strings that were added.
        loads = [s for s in elf._segments if s.kind == _PT_LOAD]
        notes = [s for s in elf._segments if s.kind == _PT_NOTE and s.place > loads[-1].place]
        if not notes:
            raise ElfError(f"{elf.path}: no program header can be spared; link it with -Wl,--build-id")
        self._header = notes[0].place
        # Everything that is added begins here. The loader maps pages, so both begin one.
        self._page = max(s.alignment for s in loads)
        self._address = _up(max(s.address + s.memory_size for s in loads), self._page)
        self._begin = _up(len(self._data), self._page)

    def result(self, runpath):
        elf = self._elf
        for symbol in elf._symbols:
            self._rename(symbol.place, symbol.name, self._symbols)
        for place, tag, value in elf._entries:
            if tag in (_DT_NEEDED, _DT_SONAME):
                self._rename(place + 8, elf._string(value), self._libraries, "<Q")
        self._rename_versions()
        self._set_runpath(runpath)
        self._append()
        return bytes(self._data)

    def _pack(self, form, at, *values):
        struct.pack_into(form, self._data, at, *values)

    def _place_of(self, text):
        if text not in self._added:
            self._added[text] = len(self._strings)
            self._strings += text.encode() + b"\0"
        return self._added[text]

    def _rename(self, place, name, names, form="<I"):
        if name in names:
            self._pack(form, place, self._place_of(names[name]))

    def _rename_versions(self):
        """Renames the libraries in the tables of symbols' versions."""
        elf = self._elf
        if _DT_VERNEED in elf._values:
            at, step = elf._offset(elf._values[_DT_VERNEED]), 1
            while step:
                file, _, step = elf._unpack("<III", at + 4)
                self._rename(at + 4, elf._string(file), self._libraries)
                at += step
        if _DT_VERDEF in elf._values:
            at, step = elf._offset(elf._values[_DT_VERDEF]), 1
            while step:
                names, step = elf._unpack("<II", at + 12)
                place = at + names  # The first definition is the library itself.
                self._rename(place, elf._string(elf._unpack("<I", place)[0]), self._libraries)
                at += step

    def _set_runpath(self, runpath):
        elf = self._elf
        places = [place for place, tag, _ in elf._entries if tag in (_DT_RUNPATH, _DT_RPATH)]
        if not places:
            if len(elf._spare) < 2:  # The last one ends the list.
                raise ElfError(f"{elf.path}: its dynamic section has no room for a RUNPATH")
            places = elf._spare[:1]
        for place in places:
            self._pack("<qQ", place, _DT_RUNPATH, self._place_of(runpath))

    def _hash_table(self):
        """Returns a table of the exported symbols for DT_HASH."""
        names = [self._symbols.get(s.name, s.name) if s.defined else "" for s in self._elf._symbols]
        buckets, chain = [0] * max(1, len(names)), [0] * len(names)
        for i, name in enumerate(names):
            if name:
                bucket = _hash(name.encode()) % len(buckets)
                chain[i], buckets[bucket] = buckets[bucket], i
        return struct.pack(f"<{2 + len(buckets) + len(chain)}I", len(buckets), len(chain), *buckets, *chain)

    def _append(self):
        """Appends the strings and the hash table, and says where they are: to the loader in the dynamic section and
        the program header, to other tools in the section headers."""
        elf, address = self._elf, self._address
        table = self._hash_table() if elf.exported & self._symbols.keys() else b""
        strings = bytes(self._strings) + bytes(-len(self._strings) % 8)
        moved = {elf._values[_DT_STRTAB]: (None, address, len(self._strings))}
        for place, tag, value in elf._entries:
            if tag == _DT_STRTAB:
                self._pack("<Q", place + 8, address)
            elif tag == _DT_STRSZ:
                self._pack("<Q", place + 8, len(self._strings))
            elif tag in (_DT_GNU_HASH, _DT_HASH) and table:
                self._pack("<qQ", place, _DT_HASH, address + len(strings))
                moved[value] = (_SHT_HASH, address + len(strings), len(table))
        for place in elf._sections:
            kind, at = elf._unpack("<I8xQ", place + 4)
            if at in moved:
                new_kind, at, size = moved[at]
                self._pack("<I", place + 4, new_kind or kind)
                self._pack("<QQQ", place + 16, at, self._begin + at - address, size)
                self._pack("<Q", place + 56, 4 if new_kind else 0)
        self._data += bytes(self._begin - len(self._data)) + strings + table
        size = len(strings) + len(table)
        self._pack("<IIQQQQQQ", self._header, _PT_LOAD, 4, self._begin, address, address, size, size, self._page)


def _up(value, multiple):
    return -(-value // multiple) * multiple


def _hash(name):
    """The hash of DT_HASH."""
    h = 0
    for byte in name:
        h = (h << 4) + byte
        h ^= h >> 24 & 0xF0
        h &= 0xFFFFFFF
    return h
